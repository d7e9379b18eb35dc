"""moto's web application: it finds the part of moto that a request is for."""

from __future__ import annotations

import functools
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

__all__ = ("MOTO",)


class _Application(DomainDispatcherApplication):
    """Look for the part once for each host; moto reads its own directory for each request."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        self._part_for = functools.lru_cache(super().get_backend_for_host)

    def get_backend_for_host(self, host: str | None) -> Any:
        return self._part_for(host)


# It has no state but what it has looked up: a process needs one, however many servers it runs.
MOTO = _Application()
