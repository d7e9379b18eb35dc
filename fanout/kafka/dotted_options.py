"""Parse options by Kafka's dotted names, and refuse others with a reason."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from fanout.errors import OptionError

_WAITS: Final = "pass backoff=fanout.Backoff(base=..., cap=...), in seconds"
# What every client refuses; the prefixes of names are without the dot.
_REFUSED: Final = {
    "bootstrap.servers": "pass cluster=Cluster(servers)",
    "client.id": "pass Cluster(..., client_id=...)",
    "reconnect.backoff.max.ms": _WAITS,
    "reconnect.backoff.ms": _WAITS,
    "retry.backoff.max.ms": _WAITS,
    "retry.backoff.ms": _WAITS,
    "security.protocol": "pass Cluster(..., security=Security(protocol=...))",
}
_SECURITY: Final = {
    "sasl": "pass Cluster(..., security=Security(username=..., password=..., mechanism=...))",
    "ssl": "pass Cluster(..., security=Security(ca_file=..., certificate_file=...))",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DottedOptions:
    """The options of one kind of client.

    Args:
        whose: The client: `"consumer"` or `"producer"`.
        numbers: The range of each option that is a whole number.
        words: The values of each option that is one of several words.
        refused: For each option that this client refuses, the reason or what replaces it.
    """

    whose: str
    numbers: Mapping[str, tuple[int, int]]
    words: Mapping[str, Iterable[str]]
    refused: Mapping[str, str]

    def parse(self, options: Mapping[str, str | int]) -> dict[str, Any]:
        """Return values by the names of fields, milliseconds as seconds."""
        if not isinstance(options, Mapping):
            raise OptionError(f"{self.whose}_options must be a mapping of Kafka's names to values")
        fields: dict[str, Any] = {}
        for name, value in options.items():
            if name in self.numbers:
                number = self._number(name, value)
                if name.endswith(".ms"):
                    fields[_field(name.removesuffix(".ms"))] = number / 1000
                else:
                    fields[_field(name)] = number
            elif name in self.words:
                fields[_field(name)] = self._word(name, value)
            else:
                raise OptionError(self._refusal(name))
        return fields

    def _number(self, name: str, value: object) -> int:
        low, high = self.numbers[name]
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise OptionError(f"{name}={value!r} must be a whole number from {low} to {high}")
        return value

    def _word(self, name: str, value: object) -> str:
        words = tuple(self.words[name])
        if not isinstance(value, str) or value not in words:
            raise OptionError(f"{name}={value!r} must be one of {', '.join(words)}")
        return value

    def _refusal(self, name: object) -> str:
        """Return why an option is refused, without its value, which may be a secret."""
        if not isinstance(name, str):
            return f"{self.whose}_options must be named by strings, not {type(name).__name__}"
        if name.startswith("kafka."):
            return f"{self.whose} option {name!r} has a prefix of Spark's: write {name[6:]!r}"
        refused = {**_REFUSED, **self.refused}
        if reason := refused.get(name, _SECURITY.get(name.partition(".")[0])):
            return f"{self.whose} option {name!r} is refused: {reason}"
        known = [*self.numbers, *self.words, *refused]
        close = difflib.get_close_matches(name.lower().replace("_", "."), known)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        return f"{self.whose} option {name!r} is not known{hint}"


def _field(name: str) -> str:
    return name.replace(".", "_")
