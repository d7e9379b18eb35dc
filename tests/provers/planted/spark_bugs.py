"""Mistakes that would break a promise, each as a small change to the library."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from fanout.landing import claims
from fanout.landing.claims import Ownership
from fanout.landing.log import ledger
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.segments.segment_filler import NoRecords, SegmentFiller, Stopped
from fanout.landing.segments.segments import SEGMENTS, Filled, OpenSegment, SegmentFile, SegmentLog
from fanout.landing.storage import local_storage
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.query.batch_runner import BatchResult, BatchRunner
from tests.provers.planted.object_bugs import OBJECT_BUGS
from tests.provers.simulation.spark.disk import DiskFile, DiskFolder
from tests.provers.simulation.spark.disk_stand_ins import Descriptor, DiskOs
from tests.provers.simulation.spark.object_store import RemoteStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.landing.log.entries import BatchEntry

fsync = DiskOs.fsync
find = BatchLedger.find
prune = BatchLedger.prune
begin = BatchLedger.__init__
run = BatchRunner.run
finish = BatchRunner._finish
sweep = LocalStorage.sweep
open_segment = SegmentLog.open
hand_over = SegmentFiller._hand_over


def fsync_of_directories_alone(descriptor: Descriptor) -> None:
    if isinstance(descriptor.node, DiskFolder):
        fsync(descriptor)


def fsync_of_files_alone(descriptor: Descriptor) -> None:
    if isinstance(descriptor.node, DiskFile):
        fsync(descriptor)


def sweep_without_fsync(self: LocalStorage) -> None:
    with mock.patch.object(local_storage, "_fsync"):
        sweep(self)


def name_by_rename(source: Any, final: Any) -> None:
    final.unlink(missing_ok=True)
    DiskOs.link(source, final)
    source.unlink()
    local_storage._fsync(final.parent)


def put_over(self: RemoteStorage, name: str, data: bytes) -> None:
    self.objects[name] = data


def publish_later(self: BatchRunner, segment: OpenSegment) -> SegmentFile:
    sealed = segment.seal()
    name = f"{SEGMENTS}/{sealed.path.name}"
    acknowledge = self._acknowledge

    def acknowledge_and_publish(positions: Any) -> None:
        acknowledge(positions)
        self._storage.publish(sealed.path, name)
        self._acknowledge = acknowledge

    self._acknowledge = acknowledge_and_publish
    return SegmentFile(name=name, rows=sealed.rows, size=sealed.size)


def acknowledge_first(self: BatchRunner, entry: BatchEntry) -> None:
    self._acknowledge(entry.positions)
    self._ledger.write(entry)
    self._ledger.prune()


def acknowledge_unhandled(self: BatchRunner, entry: BatchEntry, *args: Any) -> BatchResult:
    self._acknowledge(entry.positions)
    return finish(self, entry, *args)


def handle_first(self: BatchRunner, entry: BatchEntry) -> None:
    if entry.segments:
        self._handle(entry, None)
    self._ledger.write(entry)
    self._acknowledge(entry.positions)
    self._ledger.prune()


def prune_newest(self: BatchLedger) -> None:
    prune(self)
    for segment in () if self._newest is None else self._newest.segments:
        self._storage.delete(segment.name)


def prune_nothing(self: BatchLedger) -> None:
    self._swept_orphans = True


def prune_orphans_at_once(self: BatchLedger, *args: Any) -> None:
    begin(self, *args)
    self._delete_orphans()


def prune_orphans_of_newer_runs(self: BatchLedger) -> None:
    named = {segment.name for entry in self._entries.values() for segment in entry.segments}
    for file in self._storage.list(SEGMENTS):
        if f"{SEGMENTS}/{file.name}" not in named:
            self._storage.delete(f"{SEGMENTS}/{file.name}")


def find_older_is_new(self: BatchLedger, batch_id: int, query_id: str) -> BatchEntry | None:
    if self._newest is not None and batch_id < self._newest.batch_id:
        return None
    return find(self, batch_id, query_id)


def find_despite_a_hole(self: BatchLedger, batch_id: int, query_id: str) -> BatchEntry | None:
    if self._newest is None or batch_id > self._newest.batch_id:
        return None
    return find(self, batch_id, query_id)


def discard_loudly(self: OpenSegment) -> None:
    if self._writer is not None:
        self._writer.close()
    self.path.unlink(missing_ok=True)


def find_no_replay(self: BatchLedger, batch_id: int, query_id: str) -> BatchEntry | None:
    return find(self, batch_id, query_id) and None


def return_without_entry(
    self: BatchRunner, batch_id: int, query_id: str, *args: Any
) -> BatchResult:
    if self._ledger.find(batch_id, query_id) is None:
        handover = self._take(60.0)
        match handover:
            case Stopped():
                return BatchResult(batch_id, finished=True)
            case NoRecords(positions, finished) if (
                self._ledger.newest is not None and self._ledger.newest.positions == positions
            ):
                return BatchResult(batch_id, finished=finished)
            case _:
                with mock.patch.object(self, "_take", return_value=handover):
                    return run(self, batch_id, query_id, *args)
    return run(self, batch_id, query_id, *args)


def positions_of_the_stream(self: SegmentFiller) -> Filled:
    handed = hand_over(self)
    return Filled(handed.segment, self._stream.delivered)


def from_the_origin(self: BatchLedger) -> Any:
    return self.origin()


def same_names(self: SegmentLog) -> OpenSegment:
    self._prefix = "run-000001"
    return open_segment(self)


def lock_without_waiting(*_: object) -> None:
    """Have no lock."""


SPARK_BUGS: dict[str, tuple[Any, str, Any]] = {
    "a segment or an entry is not fsynced": (DiskOs, "fsync", fsync_of_directories_alone),
    "a directory is not fsynced": (DiskOs, "fsync", fsync_of_files_alone),
    "names of an earlier run are not fsynced": (LocalStorage, "sweep", sweep_without_fsync),
    "a name is given by rename": (local_storage, "_link", name_by_rename),
    "creation replaces": (RemoteStorage, "_put", put_over),
    "an entry comes before its segment": (BatchRunner, "_publish", publish_later),
    "acknowledged before the entry": (BatchRunner, "_record", acknowledge_first),
    "acknowledged before the handler": (BatchRunner, "_finish", acknowledge_unhandled),
    "handled before the entry": (BatchRunner, "_record", handle_first),
    "the newest segment is pruned": (BatchLedger, "prune", prune_newest),
    "a segment is pruned too early": (ledger, "_KEPT_BATCHES", 9),
    "nothing is pruned": (BatchLedger, "prune", prune_nothing),
    "orphans go before the first entry": (BatchLedger, "__init__", prune_orphans_at_once),
    "segments of a newer run are orphans": (
        BatchLedger,
        "_delete_orphans",
        prune_orphans_of_newer_runs,
    ),
    "an older batch id is taken for a new one": (BatchLedger, "find", find_older_is_new),
    "a hole in the ledger is passed over": (BatchLedger, "find", find_despite_a_hole),
    "a disk that refuses to clean up is an error": (OpenSegment, "discard", discard_loudly),
    "a batch id is never replayed": (BatchLedger, "find", find_no_replay),
    "the owner of the checkpoint is not checked": (Ownership, "check", lambda _: None),
    "the lock is not waited for": (claims, "_wait_for_lock", lock_without_waiting),
    "a batch is done without an entry": (BatchRunner, "run", return_without_entry),
    "positions run ahead of the segment": (SegmentFiller, "_hand_over", positions_of_the_stream),
    "a run begins at the origin": (BatchLedger, "positions", from_the_origin),
    "two runs use one name": (SegmentLog, "open", same_names),
    **OBJECT_BUGS,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Let the library make a mistake while the block runs."""
    target, attribute, replacement = SPARK_BUGS[name]
    with mock.patch.object(target, attribute, replacement):
        yield
