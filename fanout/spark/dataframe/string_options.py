"""Read the string options of `format("fanout")`, and write errors in their words."""

from __future__ import annotations

import difflib
import json
import re
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.sentence import Option, Sentence
from fanout.errors import FanOutError, OptionError
from fanout.landing.storage.object_errors import HIDDEN_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

STORAGE: Final = "storage."
"""How options begin that are settings of an object store."""

_LANDING_WORDS: Final = {"location": "landing", "storage_options": f"{STORAGE}*"}
_NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})
_SECRET: Final = re.compile(
    r"secret|password|credential|access_?key|jaas|oauthbearer|key(store)?\.key$|"
    r"(session|sas|auth|security)_?token",
)
_FLAGS: Final = {"true": True, "false": False}


@contextmanager
def in_words_of_options(words: Mapping[str, str] = _NO_WORDS) -> Iterator[None]:
    """Write what a block raises in the words of options.

    `words` has those for the keywords of the source; it is empty where the user gave it as a value.
    """
    try:
        yield
    except FanOutError as error:
        error.args = (Sentence(error).in_words(lambda option: _word(option, words)),)
        raise


def _word(option: Option, words: Mapping[str, str]) -> str | None:
    name = (_LANDING_WORDS | dict(words)).get(option.name)
    if option.name == HIDDEN_SETTINGS:
        return None  # Spark shows options to everybody
    if option.name.startswith(STORAGE):
        return f"the option {option.name}"
    if words and option == "on_data_loss='earliest'":
        return "failOnDataLoss=false"
    if name is None:
        return option
    return name if option.value is None else f"{name}={option.value}"


@final
class StringOptions:
    """The options of one DataFrame, by name in any case; Spark gives names in lower case.

    Each method raises OptionError for a value that is not what it returns.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """Return the value of an option, which must not be empty; None if it is not given."""
        value = self._options.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty; give it a value, or leave it out")
        return value

    def required(self, name: str, why: str) -> str:
        """Return the value of an option that must be given; `why` is a clause, for the message."""
        value = self.text(name)
        if value is None:
            raise OptionError(f"{name} is missing: {why}")
        return value

    def word(self, name: str, *words: str) -> str | None:
        """Return the one of several words that an option has, in any case."""
        value = self.text(name)
        if value is None:
            return None
        found = next((word for word in words if word.lower() == value.strip().lower()), None)
        if found is None:
            raise OptionError(f"{name}={value!r} must be {' or '.join(words)}")
        return found

    def flag(self, name: str) -> bool | None:
        """Return an option that is true or false."""
        word = self.word(name, *_FLAGS)
        return None if word is None else _FLAGS[word]

    def number(self, name: str) -> int | None:
        """Return an option that is a whole number, 0 or more."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise OptionError(f"{name}={value!r} must be a whole number")
        return int(value)

    def seconds(self, name: str) -> float | None:
        """Return an option that is a number of seconds."""
        value = self.text(name)
        try:
            return None if value is None else float(value)
        except ValueError:
            raise OptionError(f"{name}={value!r} must be a number of seconds") from None

    def json_object(self, name: str, like: str) -> dict[str, Any] | None:
        """Return an option that is a JSON object; `like` is an example, for messages."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OptionError(f"{name}={value!r} must be JSON like {like}")
        return found

    def refuse_others(
        self, known: Iterable[str], refused: Mapping[str, str], secrets_go: str
    ) -> None:
        """Check that every option is known. No message has a value, which may be a secret.

        Args:
            known: The names of the options that there are.
            refused: Why an option that people know from elsewhere is refused, a clause, by its name
                in lower case.
            secrets_go: Where secrets are given instead, a clause.
        """
        names = {name.lower(): name for name in known}
        for given in self._options.keys() - names.keys():
            if given in refused:
                raise OptionError(f"the option {given!r} is refused: {refused[given]}")
            if _SECRET.search(given):
                raise OptionError(
                    f"the option {given!r} is a secret, and Spark shows options in its plans: "
                    f"{secrets_go}"
                )
            close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
            hint = f"; did you mean {names[close[0]]!r}?" if close else ""
            raise OptionError(f"the option {given!r} is not known{hint}")
