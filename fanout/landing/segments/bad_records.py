"""Keep the records of a landing that `decode` fails for in files of their own."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, final
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fanout.core.error_text import disk_reason, text_of
from fanout.core.option_checks import check_text
from fanout.core.sentence import Option, Sentence
from fanout.core.user_decode import KEPT
from fanout.errors import CheckpointError, OptionError
from fanout.landing.segments.segments import OLDER_STATE, SEGMENTS, Count, publish_errors
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import absolute_location, directories_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fanout.core.source import Source
    from fanout.landing.segments.segments import OpenSegment
    from fanout.landing.storage.storage import LandingStorage, Storage

STAGED: Final = "bad"
"""The directory of a landing for bad records of landers, until an entry has them."""

_WRITING: Final[Mapping[str, Any]] = {"compression": "zstd", "write_page_checksum": True}
# The number of the entry that names it, and the run that wrote it.
_NAME: Final = re.compile(r"entry-([0-9]{12})-run-([0-9]{6,})\.parquet")


def keeping_bad_records(source: Source) -> Source:
    """Return a source that delivers bad records among the others, for `OpenSegment`."""
    given: Any = source
    if getattr(source, "decode", None) is None:
        raise OptionError(
            Option("bad_records"), Sentence.of(" is about {decode}: pass {decode}, or leave it out")
        )
    if given.on_bad_record != "fail":
        raise OptionError(
            Option("on_bad_record"), " must be left out where ", Option("bad_records"), " is given"
        )
    known: Source = replace(given, on_bad_record=KEPT)
    return known


def check_bad_records(location: str, landing: str) -> None:
    """Check the location of bad records: readers of a landing's files must not find it there."""
    check_text("bad_records", location)
    inside = f"{landing.rstrip('/')}/{SEGMENTS}"
    segments = directories_of("location", inside)
    if directories_of("bad_records", location)[: len(segments)] == segments:
        raise OptionError(
            Option("bad_records", location),
            f" must be elsewhere: readers take what is in {inside} for records",
        )


@final
class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bad records of a segment of a lander: it does not know yet in which entry they are."""

    name: Annotated[str, msgspec.Meta(pattern=r"^bad/[a-z0-9-]+\.parquet\Z", max_length=100)]
    rows: Count  # its records


def stage_bad_records(storage: Storage, segment: OpenSegment) -> StagedFile | None:
    """Leave the bad records of a segment in the landing, durably; it blocks.

    If that is refused, the segment is gone, and the error a CheckpointError.
    """
    if not segment.bad:
        return None
    table = pa.Table.from_batches(segment.bad)
    local = segment.path.with_name(f"bad-{segment.path.name}")
    staged = StagedFile(f"{STAGED}/{segment.path.name}", table.num_rows)
    with publish_errors(storage, segment):
        pq.write_table(table, local, **_WRITING)
        storage.publish(local, staged.name)
    return staged


@final
class BadRecordFiles:
    """The files of bad records of one landing; below their location it has a directory. It blocks.

    A file is named by the number of the entry that names it, and is durable before that entry. What
    a killed run has left unnamed is deleted by the next one, before it reads.
    """

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None,
        identity: str,
        landing: str,
        run: int,
    ) -> None:
        in_store = is_object_location(location)
        self._storage = open_storage(location, options if in_store else None)
        self._identity = identity
        self.directory = self._directory_of(landing)
        self._run = run
        name = self.directory.replace("landing=", "bad-")
        self._scratch = self._storage.scratch() / f"{name}.parquet"
        self._scratch.unlink(missing_ok=True)

    def _directory_of(self, landing: str) -> str:
        # A copy of a landing has its identity too, and a directory of its own.
        place = crc32("/".join(directories_of("location", landing)).encode())
        return f"landing={self._identity}-{place:08x}"

    @property
    def location(self) -> str:
        """Where they are, for a later run."""
        return absolute_location(self._storage)

    def left(self, named_by: Callable[[int], str | None], formerly: str | None = None) -> list[str]:
        """Return the files of earlier runs that no entry names, by a list of all files.

        Call it when this run has written an entry: only then no earlier run can name one any more.
        `named_by` returns the file that the entry of a number names, or None without that entry.
        `formerly` is where the landing was when the files were written, if it was elsewhere.
        """
        directory = self.directory if formerly is None else self._directory_of(formerly)
        last: dict[int, int] = {}  # a run ends with a file that no entry names
        for file in self._storage.list(directory):
            if match := _NAME.fullmatch(file.name):
                entry, run = int(match[1]), int(match[2])
                last[run] = max(entry, last.get(run, 0))
        found = []
        for run, entry in last.items():
            name, named = _name(directory, entry, run), named_by(entry) if run < self._run else None
            # An entry that retention has deleted had its file.
            if named is not None and named != name:
                found.append(name)
        return found

    def delete_last(self, first_entries: Mapping[int, int]) -> None:
        """Delete what the run before each of some runs may have left, by the runs' first entries.

        An entry has one number, and the first of a run has no file: the run before it was killed,
        or overtaken, with a file for that number.
        """
        for run, entry in first_entries.items():
            self._storage.delete(_name(self.directory, entry, run - 1))

    def publish(self, segment: OpenSegment, entry: int) -> str:
        """Publish the bad records of a segment; return the name of their file, if they have one."""
        bad = segment.bad
        return self._publish(iter([pa.Table.from_batches(bad)]), entry) if bad else ""

    def gather(self, landing: LandingStorage, staged: Sequence[str], entry: int) -> str:
        """Publish what landers have staged, a row group in memory at a time, as `publish` does."""

        def tables() -> Iterator[pa.Table]:
            for name in staged:
                try:
                    with pq.ParquetFile(
                        landing.open(name), page_checksum_verification=True
                    ) as file:
                        for group in range(file.num_row_groups):
                            yield file.read_row_group(group)
                except (OSError, pa.ArrowException) as error:
                    raise CheckpointError(
                        f"cannot read {landing.location}/{name}: {_reason(error)}"
                    ) from error

        return self._publish(tables(), entry) if staged else ""

    def _publish(self, tables: Iterator[pa.Table], entry: int) -> str:
        name = _name(self.directory, entry, self._run)
        try:
            first = next(tables)
            with pq.ParquetWriter(self._scratch, first.schema, **_WRITING) as writer:
                for table in chain([first], tables):
                    writer.write_table(table)
            self._storage.publish(self._scratch, name)
        except FileExistsError as error:
            raise CheckpointError(
                f"{self._storage.location}/{name} is there already: {OLDER_STATE}; start again: "
                f"the next run deletes the file, which no entry has, and lands its records"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise CheckpointError(
                f"bad records cannot be written to {self._storage.location}: {_reason(error)}"
            ) from error
        return name

    def discard(self, name: str) -> None:
        """Delete a file that no entry names."""
        if name:
            self._storage.delete(name)

    def close(self) -> None:
        """Remove what only this process needed."""
        with suppress(OSError):
            self._scratch.unlink(missing_ok=True)
        self._storage.close()


def _name(directory: str, entry: int, run: int) -> str:
    return f"{directory}/entry-{entry:012}-run-{run:06}.parquet"


def _reason(error: Exception) -> str:
    return disk_reason(error) if isinstance(error, OSError) else text_of(error)
