"""Write errors of a landing, and of its source, in the words of the options of a DataFrame."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from fanout.core.sentence import Option, Sentence
from fanout.errors import FanOutError
from fanout.landing.storage.object_errors import HIDDEN_SETTINGS
from fanout.spark.dataframe.storage_settings import STORAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LANDING_WORDS: Final = {"location": "landing", "storage_options": f"{STORAGE}*"}
_NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})


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
