"""Remember where the runs of a landing have kept bad records, so that later ones find what is left.

A run may be killed between a file of bad records and its entry, and the next one may keep bad
records elsewhere, or not at all.
"""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, final

import msgspec

from fanout.core.error_text import text_of
from fanout.errors import CheckpointError, FanOutError
from fanout.landing.claims import create_owned
from fanout.landing.log.columns import read_identity
from fanout.landing.log.entries import MAX_ENTRY_BYTES, VERSION, ledger_format
from fanout.landing.segments.bad_records import STAGED, BadRecordFiles
from fanout.landing.segments.segments import Count, run_of
from fanout.landing.storage.local_storage import SCRATCH
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import absolute_location, directories_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import EntryLog
    from fanout.landing.storage.storage import Storage

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"location-([0-9]{6,})\.json")
# An upload is given up after some minutes. So many later runs have hardly kept bad records by then.
_RUNS: Final = 5


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    location: Annotated[str, msgspec.Meta(max_length=10_000)]  # of bad records
    # Where the landing was, and the first entry of the run. They are not known of runs of before
    # these were stored.
    landing: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    entry: Count | None = None


_FORMAT: Final = ledger_format(_Place)
_Places: TypeAlias = dict[int, _Place]  # by the numbers of the runs


@final
class BadRecordPlaces:
    """The locations of bad records of one landing. Every call blocks.

    Use it when this run has written its first entry: only then no earlier run can name a file any
    more.
    """

    def __init__(
        self,
        storage: Storage,
        ownership: Ownership,
        log: EntryLog,
        options: Mapping[str, str] | None,
    ) -> None:
        self._storage = storage
        self._landing = absolute_location(storage)
        self._ownership = ownership
        self._log = log
        self._first = log.next_number - 1
        self._options = options

    def open(self, location: str | None) -> BadRecordFiles | None:
        """Delete what earlier runs have left, and open the location of this one, if it has one.

        A location of before that cannot be used is logged, and looked at again by the next run. So
        is, once, what was left before the landing was moved: it may be another landing's, of which
        this one is a copy.
        """
        former = self._former()
        self._report_moved(former)
        if location is None:
            self._sweep_others(former, None)
            return None
        with ExitStack() as opened:
            files = opened.enter_context(closing(self._files(location)))
            own = files.location
            self._sweep_others(former, own)
            kept = {run: place for run, place in former.items() if place.location == own}
            self._sweep(files, kept)
            place = _Place(VERSION, own, self._landing, self._first)
            data = msgspec.json.encode(place)
            create_owned(self._storage, self._ownership, _record(self._ownership.run), data)
            for run in kept:
                if run <= self._ownership.run - _RUNS:
                    self._forget(run)
            opened.pop_all()
        return files

    def _sweep(self, files: BadRecordFiles, kept: _Places) -> None:
        """Delete what earlier runs have left at a location: without a list, where all are known."""
        before = range(max(1, self._ownership.run - _RUNS + 1), self._ownership.run)
        known = {run: place.entry for run, place in kept.items() if place.entry is not None}
        if all(run in known for run in before):
            first_entries = {run: known[run] for run in before}
            files.delete_last({**first_entries, self._ownership.run: self._first})
            return
        for name in files.left(self._log.bad_file):
            files.discard(name)

    def _sweep_others(self, former: _Places, own: str | None) -> None:
        """Delete what earlier runs have left at other locations than that of this one."""
        for location in {place.location for place in former.values()} - {own}:
            kept = {run: place for run, place in former.items() if place.location == location}
            names = ", ".join(map(_record, kept))
            try:
                _check_there(location)
                with closing(self._files(location)) as others:
                    self._sweep(others, kept)
            except (FanOutError, OSError) as error:
                _LOG.warning(
                    "what a run that was killed may have left in %s is not deleted before the "
                    "next run: %s; delete %s of the landing if that location is gone for good",
                    location,
                    text_of(error),
                    names,
                )
            else:
                for run in kept:
                    self._forget(run)

    def _report_moved(self, former: _Places) -> None:
        """Log what was left before the landing was moved, and forget it."""
        here = directories_of("location", self._landing)
        moved = {
            run: place
            for run, place in former.items()
            if place.landing and directories_of("location", place.landing) != here
        }
        for place in {(each.location, each.landing): each for each in moved.values()}.values():
            self._report(place)
        for run in moved:
            self._forget(run)
            del former[run]

    def _report(self, place: _Place) -> None:
        try:
            _check_there(place.location)
            # As this landing: the one of before may still be there, and write.
            with closing(self._files(place.location)) as files:
                names = files.left(self._log.bad_file, place.landing)
        except (FanOutError, OSError) as error:
            _LOG.warning(
                "this landing was moved from %s, and what a run that was killed there may have "
                "left in %s is not known: %s; no later run looks for it",
                place.landing,
                place.location,
                text_of(error),
            )
            return
        for name in names:
            _LOG.warning(
                "%s/%s is in no entry of this landing, which was moved from %s: delete the file "
                "unless a landing is still there, whose file it may be; no later run looks for it",
                place.location,
                name,
                place.landing,
            )

    def _former(self) -> _Places:
        """Return the locations of earlier runs.

        What landers of earlier runs have staged is copied where an entry names it, and is deleted
        here.
        """
        found: _Places = {}
        for file in self._storage.list(STAGED):
            name, run = f"{STAGED}/{file.name}", run_of(file.name)
            if run is not None and run < self._ownership.run:
                self._storage.delete(name)
            elif match := _NAME.fullmatch(file.name):
                data = self._storage.read(name, limit=MAX_ENTRY_BYTES)
                if data is not None:
                    place = _FORMAT.read(data, f"{name} in {self._storage.location}")
                    found[int(match[1])] = place
        return found

    def _forget(self, run: int) -> None:
        self._storage.delete(_record(run))

    def _files(self, location: str) -> BadRecordFiles:
        identity, run = read_identity(self._storage).id, self._ownership.run
        return BadRecordFiles(location, self._options, identity, self._landing, run)


def _record(run: int) -> str:
    return f"{STAGED}/location-{run:06}.json"


def _check_there(location: str) -> None:
    """Raise an error if a disk of before is not mounted: to open it would make it anew."""
    if not is_object_location(location) and not Path(location, SCRATCH).is_dir():
        raise CheckpointError(f"{location} is not there")
