"""Write errors of a landing, and of its source, in the words of the options of a DataFrame."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from fanout.core.option_words import STORAGE_SECRETS, in_words_of_caller
from fanout.errors import FanOutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LANDING_WORDS: Final = {"location": "landing", "storage_options": "storage.*"}
_NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})
# This option has other values than the keyword.
_EARLIEST: Final = "on_data_loss='earliest'"


@contextmanager
def in_words_of_options(words: Mapping[str, str] = _NO_WORDS) -> Iterator[None]:
    """Write what a block raises in the words of options.

    Args:
        words: The options for the keywords of the source; empty where the user gave it as a value.
    """
    try:
        yield
    except FanOutError as error:
        text = re.sub(STORAGE_SECRETS, "", str(error))
        text = re.sub(r"\bthe storage option (\w+)", r"the option storage.\1", text)
        if words:
            text = text.replace(_EARLIEST, "failOnDataLoss=false")
        error.args = (in_words_of_caller(text, _LANDING_WORDS | dict(words)),)
        raise
