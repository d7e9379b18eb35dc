"""Make moto's conditional writes atomic: it checks a condition first, and writes later."""

from __future__ import annotations

from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class OneAtATime:
    """Serve the requests that `concerns` picks by their environment one after the other."""

    def __init__(self, app: Any, concerns: Callable[[dict[str, Any]], bool]) -> None:
        self._app = app
        self._concerns = concerns
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Serve a request."""
        if not self._concerns(environ):
            return self._app(environ, start_response)
        # A client that stalls in the middle of its body must not hold the others up.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._lock:
            return self._app(environ | {"wsgi.input": BytesIO(body)}, start_response)
