"""Count why subscriptions were opened again, by the names of the causes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Mapping

# The conventions of OpenTelemetry for `error.type` name what has no name of its own so.
OTHER: Final = "_OTHER"
_MAX_CAUSES: Final = 50
_MAX_LENGTH: Final = 100


@final
class Causes:
    """Count causes by name; a service that sends ever new names takes no more memory for them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, name: str) -> None:
        """Count one cause; a name that is no identifier of a sensible length counts as `_OTHER`."""
        name = name_or_other(name)
        if name not in self._counts and len(self._counts) >= _MAX_CAUSES:
            name = OTHER
        self._counts[name] = self._counts.get(name, 0) + 1

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts so far, by name; any thread may read them."""
        return MappingProxyType(self._counts.copy())


def name_or_other(name: str) -> str:
    """Return the name of a cause; `_OTHER` for what is no identifier of a sensible length.

    A service that puts a text in place of a code might put data of records there.
    """
    is_name = len(name) <= _MAX_LENGTH and name.replace(".", "_").replace("#", "_").isidentifier()
    return name if is_name else OTHER
