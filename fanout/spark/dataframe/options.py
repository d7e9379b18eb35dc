"""The options of `format("fanout")`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self, final

from fanout.errors import OptionError
from fanout.landing.log.landed_log import NO_LIMITS, Limits
from fanout.landing.retention import check_reader
from fanout.landing.storage.opening import open_files, open_known_storage
from fanout.spark.dataframe.option_words import in_words_of_options
from fanout.spark.dataframe.storage_settings import STORAGE, check_storage_setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.storage.storage import ReadableFiles, Storage

_STREAM: Final = ("reader", "maxRecordsPerTrigger", "maxBytesPerTrigger")
_BATCH: Final = ("stop",)
# A query reads its files soon, and once. It is slower with zstd, most where payloads do not shrink.
COMPRESSION: Final = "lz4"
"""What the files are compressed with that a query lands for itself."""

READ_OPTIONS: Final = ("landing", "start", "failOnDataLoss", *_STREAM, *_BATCH)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a user has set.

    Args:
        landing: Where the landing is.
        start: The first entry to read: "earliest", "latest" or a number.
        stop: The entry before which a batch read ends: "latest" or a number.
        reader: The name of the reader; None for a reader whose entries the landing does not keep.
        limits: The most that a micro-batch takes.
        fail_on_data_loss: Whether entries that were deleted before they were read are an error.
        storage: Settings of the object store.
    """

    landing: str
    start: int | str = "earliest"
    stop: int | str = "latest"
    reader: str | None = None
    limits: Limits = NO_LIMITS
    fail_on_data_loss: bool = True
    storage: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> Self:
        """Check options.

        Args:
            options: By their names; upper and lower case are the same.
            streaming: Whether they are of `readStream`; None where that is not known yet.

        Raises:
            OptionError: One is unknown, missing or malformed, or holds a secret.
        """
        known = {name.lower(): name for name in READ_OPTIONS}
        found, storage = {}, {}
        for name, value in options.items():
            lower = name.lower()
            if lower.startswith(STORAGE):
                storage[check_storage_setting(lower.removeprefix(STORAGE), value)] = value
            elif lower in known:
                found[known[lower]] = value
            else:
                raise _unknown(lower)
        if streaming is not None:
            _check_kind(found, streaming=streaming)
        if not found.get("landing"):
            raise OptionError(
                "the option landing is missing: give the location of a landing, such as "
                '.option("landing", "s3://lake/orders")'
            )
        reader = found.get("reader")
        return cls(
            landing=found["landing"],
            start=_entry("start", found.get("start", "earliest"), "earliest", "latest"),
            stop=_entry("stop", found.get("stop", "latest"), "latest"),
            reader=None if reader is None else check_reader(reader),
            limits=Limits(
                _count(found, "maxRecordsPerTrigger"), _count(found, "maxBytesPerTrigger")
            ),
            fail_on_data_loss=_flag("failOnDataLoss", found.get("failOnDataLoss", "true")),
            storage=storage,
        )

    def open(self) -> ReadableFiles:
        """Open the landing for reading; see `open_files`."""
        with in_words_of_options():
            return open_files(self.landing, self.storage)

    def open_storage(self) -> Storage:
        """Open the landing for a named reader, which writes; see `open_known_storage`."""
        with in_words_of_options():
            return open_known_storage(self.landing, self.storage)


def _check_kind(found: Mapping[str, str], *, streaming: bool) -> None:
    for name in _BATCH if streaming else _STREAM:
        if name in found:
            used, other = ("read", "readStream") if streaming else ("readStream", "read")
            raise OptionError(f"{name} is an option of spark.{used}, not of spark.{other}")


def _unknown(name: str) -> OptionError:
    names = {one.lower(): one for one in READ_OPTIONS}
    near = difflib.get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {names[near[0]]}?"
        if near
        else f"there are {', '.join(READ_OPTIONS)}, and {STORAGE}*"
    )
    if name == "path":
        hint = "give the location as the option landing"
    return OptionError(f'{name} is no option of format("fanout"); {hint}')


def _entry(name: str, value: str, *words: str) -> int | str:
    if value.lower() in words:
        return value.lower()
    if re.fullmatch(r"[0-9]{1,12}", value):
        return int(value)
    raise OptionError(f"{name}={value!r} must be {', '.join(words)} or the number of an entry")


def _count(found: Mapping[str, str], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", value) or int(value) < 1:
        raise OptionError(f"{name}={value!r} must be a whole number, at least 1")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise OptionError(f"{name}={value!r} must be true or false")
    return value.lower() == "true"
