"""Keep the records of a landing that `decode` fails for in files of their own."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.core.error_text import disk_reason
from fanout.core.option_checks import check_text
from fanout.core.sentence import Option, Sentence
from fanout.core.user_decode import KEPT
from fanout.errors import CheckpointError, OptionError
from fanout.landing.segments.segments import SEGMENTS
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import directories_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.core.source import Source
    from fanout.landing.segments.segments import OpenSegment

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
class BadRecordFiles:
    """The files of bad records of one landing; below their location it has a directory. It blocks.

    A file is named by the number of the entry that names it, and is durable before that entry. What
    a killed run has left unnamed is deleted by the next one, before it reads.
    """

    def __init__(
        self, location: str, options: Mapping[str, str] | None, identity: str, run: int
    ) -> None:
        in_store = is_object_location(location)
        self._storage = open_storage(location, options if in_store else None)
        self._directory = f"landing={identity}"
        self._run = run
        self._scratch = self._storage.scratch() / f"bad-{identity}.parquet"
        self._scratch.unlink(missing_ok=True)

    def sweep(self, named_by: Callable[[int], str | None]) -> None:
        """Delete the files of earlier runs that no entry names.

        Call it when this run has written an entry: only then no earlier run can name one any more.
        `named_by` returns the file that the entry of a number names, or None without that entry.
        """
        for file in self._storage.list(self._directory):
            name = f"{self._directory}/{file.name}"
            match = _NAME.fullmatch(file.name)
            if match is None or int(match[2]) >= self._run:
                continue
            # An entry that retention has deleted had its file.
            named = named_by(int(match[1]))
            if named is not None and named != name:
                self._storage.delete(name)

    def publish(self, segment: OpenSegment, entry: int) -> str:
        """Publish the bad records of a segment; return the name of their file, if they have one."""
        if not segment.bad:
            return ""
        name = f"{self._directory}/entry-{entry:012}-run-{self._run:06}.parquet"
        try:
            pq.write_table(pa.Table.from_batches(segment.bad), self._scratch, compression="zstd")
            self._storage.publish(self._scratch, name)
        except OSError as error:
            raise CheckpointError(
                f"bad records cannot be written to {self._storage.location}: {disk_reason(error)}"
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
