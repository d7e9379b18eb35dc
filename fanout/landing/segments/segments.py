"""Sealed Parquet files of drained records.

A segment is written once, row group by row group, and never changed. Uncompressed Parquet without
dictionaries or statistics is the cheapest thing that Spark's executors can read in parallel: for
the segments of a query, which are read once. Those of a landing are kept: they are compressed and
have statistics.
"""

from __future__ import annotations

import contextlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.core.error_text import disk_reason
from fanout.core.user_decode import BAD_RECORD, divided
from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.drain import Drained
    from fanout.landing.storage.storage import Storage

SEGMENTS: Final = "segments"

Count = Annotated[int, msgspec.Meta(ge=0)]

OLDER_STATE: Final = (
    "a run of the same number has written it, so an older state was restored, or runs were deleted"
)
"""Why the name of a file that a run publishes may be taken; each run has a number of its own."""

MAX_NAME: Final = 800
"""The most characters of a file's name below the checkpoint, so that an entry can name many."""


@final
class SegmentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published segment, as the ledger remembers it."""

    # Below the checkpoint.
    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^segments/([^/=_.][^/=]*=[^/=]+/)*[a-z0-9-]+\.parquet\Z",
            max_length=MAX_NAME,
        ),
    ]
    rows: Count  # its records
    size: Count  # its bytes on disk


# A session of a lander has its own numbers between those of the run and of the segment.
_NAME_OF_SESSION = re.compile(r"run-([0-9]{6,})-([0-9]{6,7})-[0-9]{8,}\.parquet")
_NAME = re.compile(r"run-([0-9]{6,})(?:-[0-9]{6,7})?-([0-9]{8,})\.parquet")
# Two or more tasks can share a segment when it has a few row groups.
_ROW_GROUPS = 4
# So many parts of a payload column are compressed to see whether that shrinks it.
_SAMPLES = 4
_SAMPLE_BYTES = 1 << 18
_SHRUNK = 0.95
_FEW_BYTES = 1 << 12  # of a sample that says nothing


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed file."""

    path: Path  # where it was written
    rows: int  # its records
    size: int  # its bytes on disk


@final
@dataclass(frozen=True, slots=True)
class SplitPart:
    """What a segment has of a split: how many records, and the split's watermark after them."""

    records: int
    watermark: int | None


@final
class OpenSegment:
    """A file that is being filled. One task or thread uses it at a time.

    A row group is written in a thread of the file's own, so that records of the next one are
    collected meanwhile: two row groups are in memory at most. The file is full after `max_records`,
    or after `max_bytes` in memory. The compression is as Parquet names it; None for a file that is
    read once.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        max_records: int,
        max_bytes: int,
        compression: str | None = None,
    ) -> None:
        self.rows = 0
        self.nbytes = 0
        self.positions: Checkpoint | None = None
        self.watermark: int | None = None
        self.parts: dict[str, SplitPart] = {}
        self.bad: list[pa.RecordBatch] = []  # the bad records among them
        self.path = path
        self._schema = schema
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._compression = compression
        self._unwritten: list[pa.RecordBatch] = []
        self._unwritten_bytes = 0
        self._unwritten_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._background = ThreadPoolExecutor(1, "fanout-segment")
        self._writing: Future[None] | None = None
        self._sealed: Segment | None = None

    @property
    def good(self) -> int:
        """The records that its file has: without the bad ones."""
        bad: int = sum(each.num_rows for each in self.bad)
        return self.rows - bad

    @property
    def room_records(self) -> int:
        """The records that still fit."""
        return self._max_records - self.rows

    @property
    def room_bytes(self) -> int:
        """The bytes that still fit."""
        return self._max_bytes - self.nbytes

    @property
    def full(self) -> bool:
        """Whether a limit is reached."""
        return self.room_records < 1 or self.room_bytes < 1

    @property
    def row_group_ready(self) -> bool:
        """Whether enough records are in memory to write a row group."""
        return (
            self._unwritten_bytes * _ROW_GROUPS >= self._max_bytes
            or self._unwritten_rows * _ROW_GROUPS >= self._max_records
        )

    def add(self, drained: Drained) -> None:
        """Take records in, in memory, with the positions and the watermark after them."""
        assert self._sealed is None, "a sealed segment never changes"
        rows, nbytes = drained.num_records, drained.nbytes
        for batch in drained.batches:
            good = batch.records
            if BAD_RECORD in good.schema.names:
                good, bad = divided(good, self._schema)
                if bad.num_rows:  # they may be in another part of the batch
                    self.bad.append(bad)
                rows -= bad.num_rows
                nbytes += good.nbytes - batch.nbytes
            if good.num_rows:
                self._unwritten.append(good)
            before = self.parts.get(batch.split.id)
            records = batch.num_records + (0 if before is None else before.records)
            self.parts[batch.split.id] = SplitPart(records, batch.watermark)
        self._unwritten_rows += rows
        self._unwritten_bytes += nbytes
        self.rows += drained.num_records
        self.nbytes += drained.nbytes
        self.positions = drained.positions
        self.watermark = drained.watermark

    def write_row_group(self) -> None:
        """Begin to write what is in memory to the file; block until the last one is written.

        A disk that refused the row group before is an OSError.
        """
        self._settle()
        if self._unwritten:
            self._writing = self._background.submit(self._write, self._take(), row_groups=1)

    def seal(self) -> Segment:
        """Write the rest, finish the file and flush it to the disk. Blocks on the disk.

        Sealing again returns the same segment. The file's name is durable only when it is
        published.
        """
        assert self.good, "only a segment with records is sealed"
        if self._sealed is None:
            self._settle()
            if self._unwritten:
                self._write(self._take(), row_groups=1 if self._writer else _ROW_GROUPS)
            assert self._writer is not None
            self._writer.close()
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            self._background.shutdown()
            self._sealed = Segment(self.path, self.good, self.path.stat().st_size)
        return self._sealed

    def discard(self) -> None:
        """Close and remove the file. Its records were not acknowledged, so they come again.

        Errors of the disk are ignored, as an earlier error is the reason for discarding. The next
        run's sweep removes a file that stays.
        """
        self._background.shutdown()
        if self._writer is not None:
            with contextlib.suppress(OSError):  # the disk may be full; the file goes anyway
                self._writer.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _settle(self) -> None:
        """Wait for the row group that is being written; a refused one is refused for ever."""
        if self._writing is not None:
            self._writing.result()

    def _take(self) -> pa.Table:
        table = pa.Table.from_batches(self._unwritten, self._schema)
        self._unwritten.clear()
        self._unwritten_bytes = self._unwritten_rows = 0
        return table

    def _write(self, table: pa.Table, row_groups: int) -> None:
        if self._writer is None:
            options = write_options(self._schema, self._compression)
            if self._compression is not None:
                options["compression"] = _compressions(table, self._compression)
            self._writer = pq.ParquetWriter(self.path, _modern(self._schema), **options)
        self._writer.write_table(table, row_group_size=-(-table.num_rows // row_groups))


@final
@dataclass(frozen=True, slots=True)
class Filled:
    """A segment that takes no more records; its new owner seals it."""

    segment: OpenSegment
    positions: Checkpoint  # every split's position after its records
    seconds: float = 0.0  # the time from its first record until now


@final
@dataclass(frozen=True, slots=True)
class LandedBatch:
    """Records for one batch or entry, in segments that landers have published."""

    segments: tuple[SegmentFile, ...]
    positions: Checkpoint  # of every split after them
    watermark: int | None  # of the stream after them; see `FanOut.watermark`
    bad: tuple[str, ...] = ()  # files of their bad records; see `bad_records.StagedFile`


@final
class SegmentLog:
    """Open one segment after the other, each with a name that no other run uses.

    They are in a local directory before they are published. `session` is the number of a lander's
    session in the run; None where the run reads by itself. The limits, 1 or more, and the
    compression are those of `OpenSegment`.
    """

    def __init__(
        self,
        directory: Path,
        run: int,
        schema: pa.Schema,
        *,
        session: int | None = None,
        max_records: int,
        max_bytes: int,
        compression: str | None = None,
    ) -> None:
        self._prefix = f"run-{run:06}" if session is None else f"run-{run:06}-{session:06}"
        self._directory = directory
        self.max_records = max_records
        self.max_bytes = max_bytes
        self._compression = compression
        self._schema = schema
        self._count = 0

    def open(self) -> OpenSegment:
        """Open the next segment; nothing is written until it has records."""
        self._count += 1
        # Spark takes a file whose name begins with "_" or "." for hidden and reads no rows.
        path = self._directory / f"{self._prefix}-{self._count:08}.parquet"
        return OpenSegment(
            path,
            self._schema,
            max_records=self.max_records,
            max_bytes=self.max_bytes,
            compression=self._compression,
        )


def run_of(name: str) -> int | None:
    """Return the number of the run that named a segment; None for a name that no run gave."""
    place = place_of(name)
    return None if place is None else place[0]


def session_of(name: str) -> tuple[int, int] | None:
    """Return the number of the run, and of the lander's session in it; None for other names."""
    match = _NAME_OF_SESSION.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def place_of(name: str) -> tuple[int, int] | None:
    """Return the number of the run that named a segment, and the segment's own in the run.

    The numbers grow from one segment of a location to the next. For other names it is None.
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def publish(storage: Storage, segment: OpenSegment) -> SegmentFile:
    """Seal a segment and give it its name in the checkpoint, durably; it blocks.

    If that is refused, the segment is gone, and the error a CheckpointError.
    """
    with publish_errors(storage, segment):
        sealed = segment.seal()
        name = f"{SEGMENTS}/{sealed.path.name}"
        storage.publish(sealed.path, name)
    return SegmentFile(name=name, rows=sealed.rows, size=sealed.size)


@contextlib.contextmanager
def publish_errors(storage: Storage, segment: OpenSegment) -> Iterator[None]:
    """Discard a segment that cannot be published; an error of the disk is a CheckpointError."""
    try:
        yield
    except FileExistsError as error:
        segment.discard()
        raise CheckpointError(
            f"the file {segment.path.name} is already in {storage.location}: {OLDER_STATE}; this "
            f"run stops, and its records come again in the next one"
        ) from error
    except OSError as error:
        segment.discard()
        raise CheckpointError(
            f"a segment cannot be written to {segment.path.parent}: {disk_reason(error)}"
        ) from error


def write_options(schema: pa.Schema, compression: str | None) -> dict[str, Any]:
    """Return how Parquet files are written, with a compression as Parquet names it.

    None is for a file that is read once, without dictionaries and statistics. Payloads never have
    them.
    """
    flat = (one for one in schema if not pa.types.is_nested(one.type))
    described = [one.name for one in flat if not pa.types.is_binary(one.type)]
    return {
        "compression": compression or "none",
        "use_dictionary": False if compression is None else described,
        "write_statistics": False if compression is None else described,
        # By it engines read those pages of a row group alone that may have what they look for.
        "write_page_index": compression is not None,
        # A replay must find the same records or an error: Parquet checks only with these.
        "write_page_checksum": True,
    }


def _compressions(table: pa.Table, compression: str) -> dict[str, str]:
    """Return the compression of each column; none for payloads that it does not make smaller.

    Those are encrypted ones, or compressed already.
    """
    footer = pa.BufferOutputStream()
    pq.write_metadata(table.schema, footer)
    schema = pq.read_metadata(pa.BufferReader(footer.getvalue())).schema
    found = dict.fromkeys((schema.column(each).path for each in range(len(schema))), compression)
    if compression != "none":
        payloads = (one.name for one in table.schema if pa.types.is_binary(one.type))
        found |= {name: "none" for name in payloads if not _shrinks(table[name], compression)}
    return found


def _shrinks(column: pa.ChunkedArray, compression: str) -> bool:
    before = after = 0
    rows = max(_SAMPLE_BYTES * len(column) // max(column.nbytes, 1), 1)
    for begin in range(0, len(column), max(len(column) // _SAMPLES, rows)):
        values = column.slice(begin, rows).drop_null().combine_chunks()
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"")
        sample = joined[0].as_buffer()[:_SAMPLE_BYTES]  # one value may be giant
        before += sample.size
        after += pa.compress(sample, codec=compression).size
    return before < _FEW_BYTES or after < _SHRUNK * before


def _modern(schema: pa.Schema) -> pa.Schema:
    """Return a schema by which Spark knows that days and times are not of the Julian calendar.

    It takes a file without it for one of Hive or of Spark 2 where a session is set so, and would
    shift dates before 1582.
    """
    return schema.with_metadata({**(schema.metadata or {}), b"org.apache.spark.version": b"3.5.0"})
