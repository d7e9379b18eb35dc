"""Write a message that names keywords of Python in the words of another caller."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRETS: Final = {
    "password": "KAFKA_PASSWORD",
    "key_password": "KAFKA_KEY_PASSWORD",
    "token": "KAFKA_TOKEN",
}
"""The environment variables of secrets, by keyword: options show in lists and plans."""

STORAGE_SECRETS: Final = r", or give the storage options? [a-z_ ]+| or as storage options"
"""A pattern of the remedies in messages that are secret settings of object storage."""

_QUOTED: Final = r"'[^']*'|\"[^\"]*\""
_VALUE: Final = rf"(?P<value>{_QUOTED}|True\b|[\w.+-]*)"
# A part of the message that is done stands as this character until the end.
_DONE: Final = "\0"
# These are also words of English: they are options in `needs a username and a password`.
_LOGIN: Final = frozenset({"username", "password", "token"})


def in_words_of_caller(message: str, words: Mapping[str, str]) -> str:
    """Replace the keywords in a message.

    Messages write a keyword as `name=value`, in `leave name out`, `set the name` or `needs a name`,
    at their beginning before `must` or `needs`, or anywhere if it has an underscore. Quoted values,
    parts of paths and names of topics stay as they are.

    Args:
        message: The message.
        words: What the caller has written for each keyword: `--ca-file`, `KAFKA_PASSWORD` or
            `STREAM` on a command line, `ssl.ca.location` in a properties file, `roleArn` among the
            options of a DataFrame.
    """

    def word(match: re.Match[str]) -> str:
        return words[match["name"]]

    def done(match: re.Match[str]) -> str:
        parts.append(with_value(match) if match["name"] else match[0])
        return _DONE

    def with_value(match: re.Match[str]) -> str:
        name, value = word(match), match["value"]
        if name[0].islower():  # neither an option of a command, nor a variable
            return f"{name}={value}"
        if name.startswith("--") and value[:1] in {"'", '"'}:
            value = shlex.quote(value[1:-1])
        return " ".join(part for part in (name, value) if part not in {"", "True"})

    def all_words(match: re.Match[str]) -> str:
        return re.sub(f"(?P<name>{_any(words)})", word, match[0])

    def all_logins(match: re.Match[str]) -> str:
        return re.sub(rf"\ba (?P<name>{_any(logins)})\b", word, match[0])

    parts: list[str] = []
    logins = {name for name in words if name in _LOGIN and "." not in words[name]}
    snakes = {name for name in words if "_" in name}
    alone = r"(?<![\w./-])(?<!\btopic )"
    message = re.sub(
        rf"{alone}(?P<name>{_any(words)})={_VALUE}|(?<!\w)(?:{_QUOTED})|{_DONE}", done, message
    )
    message = re.sub(r"(?<=\bleave )[\w ]+(?= out\b)", all_words, message)
    message = re.sub(rf"(?<=\bset )(?:the )?(?P<name>{_any(words)})\b", word, message)
    message = re.sub(rf"^(?P<name>{_any(words)})(?= (?:must|needs)\b)", word, message)
    message = re.sub(r"\b(?:needs|takes) a [a-z ,]+", all_logins, message)
    message = re.sub(rf"(?:\ban? |{alone})(?P<name>{_any(snakes)})(?![\w/-]|\.\w)", word, message)
    rest = iter(parts)
    return re.sub(_DONE, lambda _: next(rest), message)


def _any(names: Mapping[str, str] | set[str]) -> str:
    """Return a pattern for each of the names; for none, one that matches nothing."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
