"""Write a message that names keywords of Python in the words of another caller."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_VALUE: Final = r"(?P<value>'[^']*'|\"[^\"]*\"|True\b|[\w.+-]*)"
# These are also words of English: they are options in `needs a username and a password`.
_LOGIN: Final = frozenset({"username", "password", "token"})


def in_words_of_caller(message: str, words: Mapping[str, str]) -> str:
    """Replace the keywords in a message.

    Messages write a keyword as `name=value`, in `leave name out`, `set the name` or `needs a name`,
    at their beginning before `must` or `needs`, or anywhere if it has an underscore.

    Args:
        message: The message.
        words: What the caller has written for each keyword: `--ca-file`, `KAFKA_PASSWORD` or
            `STREAM` on a command line, `ssl.ca.location` in a properties file.
    """

    def word(match: re.Match[str]) -> str:
        return words[match["name"]]

    def with_value(match: re.Match[str]) -> str:
        name, value = word(match), match["value"]
        if "." in name:
            return f"{name}={value}"
        if name.startswith("--") and value[:1] in {"'", '"'}:
            value = shlex.quote(value[1:-1])
        return " ".join(part for part in (name, value) if part not in {"", "True"})

    def all_words(match: re.Match[str]) -> str:
        return re.sub(f"(?P<name>{_any(words)})", word, match[0])

    def all_logins(match: re.Match[str]) -> str:
        return re.sub(rf"\ba (?P<name>{_any(logins)})\b", word, match[0])

    logins = {name for name in words if name in _LOGIN and "." not in words[name]}
    snakes = {name for name in words if "_" in name}
    alone = rf"(?<![\w.-])(?P<name>{_any(words)})"
    message = re.sub(f"{alone}={_VALUE}", with_value, message)
    message = re.sub(r"(?<=\bleave )[\w ]+(?= out\b)", all_words, message)
    message = re.sub(rf"(?<=\bset )(?:the )?(?P<name>{_any(words)})\b", word, message)
    message = re.sub(rf"^(?P<name>{_any(words)})(?= (?:must|needs)\b)", word, message)
    message = re.sub(r"\b(?:needs|takes) a [a-z ,]+", all_logins, message)
    return re.sub(rf"(?:\ban? |(?<![\w.-]))(?P<name>{_any(snakes)})\b", word, message)


def _any(names: Mapping[str, str] | set[str]) -> str:
    """Return a pattern for each of the names; for none, one that matches nothing."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
