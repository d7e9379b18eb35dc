"""Read a landing as a DataFrame: by a streaming query, or by one that ends."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, final

import msgspec
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from fanout.errors import CheckpointError, OptionError
from fanout.landing.log.landed_log import NO_LIMITS, LandedLog, Limits, Place
from fanout.landing.retention import NamedReader
from fanout.landing.segments.segments import Count  # noqa: TC001 - msgspec reads it
from fanout.spark.dataframe.options import in_words_of_options
from fanout.spark.dataframe.row_groups import RowGroups, partitions, read_rows

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ModuleNotFoundError:  # pyspark 4.0 and 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A reader that Spark tells about Trigger.AvailableNow."""


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from fanout.spark.dataframe.options import ReadOptions

_LOG: Final = logging.getLogger("fanout.spark")
_VERSION: Final = 1  # of an offset


class _OffsetWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    version: Literal[1]
    landing: Annotated[str, msgspec.Meta(max_length=100)]
    entry: Count
    row: Count
    began: Count | None = None
    initial: bool = False


@final
@dataclass(frozen=True, slots=True)
class LandingOffset:
    """A place in a landing.

    Spark asks for the initial offset again when it replays the first batch, and the start of a
    query may be "latest". So the end of the first batch names the entry at which that began.
    """

    landing: str  # the identity of the landing
    place: Place  # everything before it was read
    began: int | None = None  # at the end of the first batch: the entry at which it began
    initial: bool = False  # whether it is the initial offset

    @classmethod
    def parse(cls, offset: Mapping[str, Any], *, landing: str, location: str) -> Self:
        """Read an offset of Spark's checkpoint, for the identity of a landing and its location.

        Raises:
            CheckpointError: It is none, or of another landing, or a newer version wrote it.
        """
        if (version := offset.get("version")) != _VERSION and isinstance(version, int):
            raise CheckpointError(
                f"the offset of the checkpoint has format version {version}, and this library "
                f"reads version {_VERSION}; use the library version that wrote it"
            )
        try:
            wire = msgspec.convert(offset, _OffsetWire)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f'the checkpoint has an offset that format("fanout") did not write ({error}); '
                f"use another checkpoint location"
            ) from error
        if wire.landing != landing:
            raise CheckpointError(
                f"the checkpoint belongs to another landing than {location}: read the landing of "
                f"before, or use another checkpoint location"
            )
        return cls(wire.landing, Place(wire.entry, wire.row), wire.began, wire.initial)

    def to_dict(self) -> dict[str, Any]:
        """Return it as Spark keeps it; two offsets of one place are the same text."""
        wire = _OffsetWire(
            _VERSION, self.landing, self.place.entry, self.place.row, self.began, self.initial
        )
        built: dict[str, Any] = msgspec.to_builtins(wire)
        return built

    def start_of_batch(self, end: LandingOffset) -> Place:
        """Return where the batch begins that Spark plans from this offset to another."""
        return Place(end.began) if self.initial and end.began is not None else self.place


class LandingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan micro-batches of a landing, and read their rows in the columns that Spark expects.

    Spark makes one in the planner, a Python process that lives as long as the query's run and asks
    for offsets; and others, which only read, in workers. So nothing is opened before Spark asks for
    an offset. What fills the landing is no matter of this class.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._planner: _Planner | None = None

    @in_words_of_options()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        return self._plan().initial().to_dict()

    @in_words_of_options()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note what is there: this run ends with it."""
        self._plan().stop_at_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, if the user has set any; Spark may pass another one instead."""
        from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - of pyspark 4.2
            ReadAllAvailable,
            ReadMaxBytes,
            ReadMaxRows,
        )

        limits = self._options.limits
        if limits.records is not None:
            return ReadMaxRows(limits.records)
        return ReadAllAvailable() if limits.bytes is None else ReadMaxBytes(limits.bytes)

    @in_words_of_options()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends.

        Args:
            start: Where it begins; Spark 4.0 and 4.1 do not say.
            limit: No limit for a trigger that takes all; otherwise the options count.
        """
        # Its class is of pyspark 4.2.
        unlimited = type(limit).__name__ == "ReadAllAvailable"
        limits = NO_LIMITS if unlimited else self._options.limits
        return self._plan().latest(start, limits).to_dict()

    @in_words_of_options()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest place, and how far the query is behind it, for `lastProgress`."""
        return self._plan().report()

    @in_words_of_options()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Divide a micro-batch among tasks."""
        planner = self._plan()
        return partitions(planner.rows(start, end), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_rows(partition, self._schema, self._options)

    @in_words_of_options()
    def commit(self, end: Mapping[str, Any]) -> None:
        """Tell the landing that a named reader no longer needs what is before an offset."""
        self._plan().commit(end)

    def _plan(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner


@final
class _Planner:
    """What the planner process knows of a landing and of the query's place in it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log = LandedLog(
            options.open(), skip_lost=not options.fail_on_data_loss, on_skipped=log_skipped
        )
        self._reader = self._named_reader(options)
        self._claimed = False
        self._stop: int | None = None
        self._initial: LandingOffset | None = None
        self._last: LandingOffset | None = None

    def initial(self) -> LandingOffset:
        if self._initial is None:
            place = Place(first_entry(self._log, self._options.start))
            self._initial = LandingOffset(self._log.identity.id, place, initial=True)
        return self._initial

    def stop_at_end(self) -> None:
        self._stop = self._log.end()

    def latest(self, given: Mapping[str, Any] | None, limits: Limits) -> LandingOffset:
        start = self._last if given is None else self._parse(given)
        end = self._log.end() if self._stop is None else self._stop
        if start is None:  # Spark 4.0 and 4.1: in a first batch, and with Trigger.AvailableNow
            self._claim(Place(0))
            start, limits = self.initial(), NO_LIMITS
        elif given is not None:
            self._log.require(start.place)
        self._claim(start.place)
        began = self._first_place(start) if start.initial else start.place
        place = max(began, Place(end))
        if limits != NO_LIMITS:
            place = self._log.limited(began, end, limits)
        if place != start.place or start.initial:
            start = LandingOffset(
                self._log.identity.id, place, began.entry if start.initial else None
            )
        self._last = start
        return start

    def _first_place(self, start: LandingOffset) -> Place:
        """Return where a new query begins, now that the landing keeps what it needs."""
        if self._options.start != "earliest":
            return start.place
        return max(start.place, Place(self._log.oldest()))

    def rows(self, given: Mapping[str, Any], until: Mapping[str, Any]) -> Iterator[Any]:
        start, end = self._parse(given), self._parse(until)
        place = start.start_of_batch(end)
        self._log.require(max(place, end.place))
        self._claim(place)
        if self._last is None or end.place >= self._last.place:
            self._last = end
        return self._log.rows(place, end.place)

    def sizes(self, given: Mapping[str, Any]) -> dict[int, int]:
        start, sizes = self._parse(given).place, Counter[int]()
        for rows in self._log.rows(Place(start.entry), Place(self._log.end())):
            sizes[rows.entry] += rows.file.size
        return sizes

    def commit(self, given: Mapping[str, Any]) -> None:
        end = self._parse(given).place.entry
        self._log.forget(end)
        if self._reader is not None:
            self._claim(Place(end))
            self._reader.commit(end)

    def report(self) -> dict[str, Any] | None:
        if self._last is None:
            return None
        end, place = self._log.end(), self._last.place
        newest = LandingOffset(self._log.identity.id, max(Place(end), place)).to_dict()
        newest["entriesBehind"] = max(end - place.entry, 0)
        marks = self._log.watermark(end - 1), self._log.watermark(place.entry - 1)
        if marks[0] is not None and marks[1] is not None:
            newest["millisBehind"] = max(marks[0] - marks[1], 0)
        return newest

    def _parse(self, offset: Mapping[str, Any]) -> LandingOffset:
        log = self._log
        return LandingOffset.parse(offset, landing=log.identity.id, location=log.location)

    def _claim(self, place: Place) -> None:
        if self._reader is not None and not self._claimed:
            self._reader.claim(place.entry)
            self._claimed = True

    def _named_reader(self, options: ReadOptions) -> NamedReader | None:
        if options.reader is None:
            return None
        return NamedReader(options.open_storage(), options.reader)


def log_skipped(first: int, last: int) -> None:
    """Log that entries were skipped, from the first to the last."""
    _LOG.warning(
        "the entries %d to %d were deleted before they were read; they are skipped, as "
        "failOnDataLoss is false",
        first,
        last,
    )


def first_entry(log: LandedLog, start: int | str) -> int:
    """Return the number of the entry at which a read begins, by the option `start`.

    Raises:
        OptionError: It is the number of an entry that is not there yet.
    """
    if isinstance(start, int):
        if start > log.end():
            raise OptionError(
                f"start={start}: the newest entry of {log.location} is {log.end() - 1}"
            )
        return start
    return log.end() if start == "latest" else log.oldest()


@final
class LandingBatchReader(DataSourceReader):
    """Read what is between two entries of a landing, in the columns that Spark expects."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @in_words_of_options()
    def partitions(self) -> list[InputPartition]:
        """Divide the rows among tasks; Spark calls it once for each action."""
        options = self._options
        log = LandedLog(
            options.open(), skip_lost=not options.fail_on_data_loss, on_skipped=log_skipped
        )
        start, stop = first_entry(log, options.start), options.stop
        if isinstance(stop, str):
            stop = log.end()
        if stop > log.end():
            raise OptionError(f"stop={stop}: the newest entry of {log.location} is {log.end() - 1}")
        if start > stop:
            raise OptionError(f"start={options.start} must not be after stop={options.stop}")
        # Spark makes a partition of its own of none.
        return partitions(log.rows(Place(start), Place(stop)), options) or [RowGroups(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_rows(partition, self._schema, self._options)
