"""Remember where the runs of a landing have kept bad records, so that later ones find what is left.

A run may be killed between a file of bad records and its entry, and the next one may keep bad
records elsewhere, or not at all.
"""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import msgspec

from fanout.core.error_text import text_of
from fanout.errors import CheckpointError, FanOutError
from fanout.landing.claims import create_owned
from fanout.landing.log.columns import read_identity
from fanout.landing.log.entries import MAX_ENTRY_BYTES, VERSION, ledger_format
from fanout.landing.segments.bad_records import STAGED, BadRecordFiles
from fanout.landing.segments.segments import run_of
from fanout.landing.storage.local_storage import SCRATCH
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import absolute_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import EntryLog
    from fanout.landing.storage.storage import Storage

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"location-[0-9]{6,}\.json")


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    location: Annotated[str, msgspec.Meta(max_length=10_000)]


_FORMAT: Final = ledger_format(_Place)


@final
class BadRecordPlaces:
    """The locations of bad records of one landing. Every call blocks.

    Use it when this run has written an entry: only then no earlier run can name a file any more.
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
        self._options = options

    def open(self, location: str | None) -> BadRecordFiles | None:
        """Delete what earlier runs have left, and open the location of this one, if it has one.

        A location of before that cannot be used is logged, and looked at again by the next run.
        """
        former = self._former()
        if location is None:
            self._sweep_others(former, None)
            return None
        with ExitStack() as opened:
            files = opened.enter_context(closing(self._files(location)))
            own = files.location
            self._sweep_others(former, own)
            files.sweep(self._log.bad_file)
            if own not in former.values():
                name = f"{STAGED}/location-{self._ownership.run:06}.json"
                data = msgspec.json.encode(_Place(VERSION, own))
                create_owned(self._storage, self._ownership, name, data)
            opened.pop_all()
        return files

    def _sweep_others(self, former: Mapping[str, str], own: str | None) -> None:
        """Delete what earlier runs have left at other locations than that of this one."""
        for name, place in former.items():
            if place == own:
                continue
            try:
                _check_there(place)
                with closing(self._files(place)) as others:
                    others.sweep(self._log.bad_file)
            except (FanOutError, OSError) as error:
                _LOG.warning(
                    "what a run that was killed may have left in %s is not deleted before the "
                    "next run: %s; delete %s of the landing if that location is gone for good",
                    place,
                    text_of(error),
                    name,
                )
            else:
                self._storage.delete(name)

    def _former(self) -> dict[str, str]:
        """Return the locations of earlier runs by the files that have them.

        What landers of earlier runs have staged is copied where an entry names it, and is deleted
        here.
        """
        found = {}
        for file in self._storage.list(STAGED):
            name, run = f"{STAGED}/{file.name}", run_of(file.name)
            if run is not None and run < self._ownership.run:
                self._storage.delete(name)
            elif _NAME.fullmatch(file.name):
                data = self._storage.read(name, limit=MAX_ENTRY_BYTES)
                if data is None:
                    continue
                place = _FORMAT.read(data, f"{name} in {self._storage.location}")
                found[name] = place.location
        return found

    def _files(self, location: str) -> BadRecordFiles:
        identity, run = read_identity(self._storage).id, self._ownership.run
        return BadRecordFiles(location, self._options, identity, self._landing, run)


def _check_there(location: str) -> None:
    """Raise an error if a disk of before is not mounted: to open it would make it anew."""
    if not is_object_location(location) and not Path(location, SCRATCH).is_dir():
        raise CheckpointError(f"{location} is not there")
