"""Who may write to a checkpoint: one run at a time.

A run is numbered: the newest one owns the checkpoint, and an older one finds out when it next asks.
On a local checkpoint a file lock comes first, so that a new run waits for an old one to end.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import CheckpointError
from fanout.landing.local_storage import LocalStorage
from fanout.landing.posix_lock import PosixLock
from fanout.spark.hadoop.jvm import java_errors, jvm
from fanout.spark.hadoop.jvm_lock import JvmLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fanout.landing.storage import Storage

__all__ = ("Ownership", "claim", "claim_stopped", "is_claimed")

_LOCK = "owner.lock"
_RUNS = "runs"
_KEPT_RUNS = 5
_MAX_RUN_BYTES = 4096
_MAX_RACES = 100
_POLL_SECONDS = 0.1


class _Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who a run is, for messages; the token tells two runs apart that took the same number."""

    version: int
    token: str
    application: str
    host: str
    pid: int

    def __str__(self) -> str:
        # It is read back from a file: nothing in it may forge a line of a log.
        return f"Spark application {self.application!r}, process {self.pid} on {self.host!r}"


@dataclass(frozen=True, slots=True)
class Ownership:
    """A claim on a checkpoint, good until a newer run makes one.

    Args:
        storage: The checkpoint.
        run: The number of this run, larger than that of every run before; put it into what is
            written, so that two runs never write the same bytes.
        mark: What this run wrote into its run file.
        lock: The lock of a local checkpoint; None for a remote one.
    """

    storage: Storage
    run: int
    mark: bytes
    lock: JvmLock | PosixLock | None

    def check(self) -> None:
        """Return if this run still owns the checkpoint; call it before every write.

        A remote checkpoint costs a listing and a read of one small file.

        Raises:
            CheckpointError: A newer run has taken over, or the checkpoint was removed or cannot
                be read.
        """
        if (loss := self.loss()) is not None:
            raise loss

    def loss(self) -> CheckpointError | None:
        """Return why this run no longer owns the checkpoint; None while it does.

        Raises:
            CheckpointError: The checkpoint cannot be read, so that nobody knows.
        """
        newest = _newest_run(self.storage)
        mark = self.storage.read(_run_name(self.run), limit=_MAX_RUN_BYTES)
        if newest > self.run or (mark is not None and mark != self.mark):
            return CheckpointError(
                f"the checkpoint {self.storage.location} was taken over by a newer run: "
                f"{_describe_holder(self.storage)}; this query stops"
            )
        if mark is None or (self.lock is not None and not self.lock.held):
            return CheckpointError(
                f"the checkpoint {self.storage.location} was removed or unlocked while this query "
                "ran; it stops, because another run may own it by now"
            )
        return None


@contextmanager
def claim(storage: Storage, spark: SparkSession, wait: float = 30.0) -> Iterator[Ownership]:
    """Own a checkpoint while the block runs; enter it before subscribing, deleting or aborting.

    On a local checkpoint the driver's JVM holds a file lock, because the JVM and its tasks outlive
    a killed Python driver by some seconds; a run in another process waits for it. On a remote one
    nothing is waited for: the newest run owns the checkpoint and the older one fails at its next
    `check`.

    Args:
        storage: The checkpoint.
        spark: The session whose JVM holds the lock.
        wait: Seconds to wait for another process's run that holds a local checkpoint.

    Raises:
        CheckpointError: Another run still holds a local checkpoint after `wait` seconds, or one of
            this JVM does, or the checkpoint cannot be written.
    """
    lock = _wait_for_lock(storage, spark, wait) if isinstance(storage, LocalStorage) else None
    try:
        run, mark = _start_run(storage, _this_process(spark))
        _prune_runs(storage, run)
        yield Ownership(storage, run, mark, lock)
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def claim_stopped(storage: LocalStorage, application: str) -> Iterator[Ownership]:
    """Own a local checkpoint without Spark while the block runs, if no query runs on it.

    A query that starts meanwhile waits, as for another query.

    Args:
        storage: The checkpoint.
        application: What we are, for the messages of others.

    Raises:
        CheckpointError: A query runs on the checkpoint, or it cannot be written.
    """
    lock = PosixLock.try_acquire(storage.root / _LOCK)
    if lock is None:
        raise CheckpointError(
            f"the checkpoint {storage.location} is in use: {_describe_holder(storage)} is still "
            f"running; stop it first"
        )
    try:
        holder = _Holder(1, uuid.uuid4().hex, application, platform.node(), os.getpid())
        run, mark = _start_run(storage, holder)
        _prune_runs(storage, run)
        yield Ownership(storage, run, mark, lock)
    finally:
        lock.release()


def is_claimed(storage: LocalStorage) -> bool:
    """Say whether another process runs a query on a local checkpoint.

    Raises:
        CheckpointError: Its lock cannot be looked at.
    """
    path = storage.root / _LOCK
    if not path.exists():
        return False
    lock = PosixLock.try_acquire(path)
    if lock is None:
        return True
    lock.release()
    return False


def _wait_for_lock(storage: LocalStorage, spark: SparkSession, wait: float) -> JvmLock:
    deadline = time.monotonic() + wait
    path = storage.root / _LOCK
    while (lock := JvmLock.try_acquire(spark, path)) is None:
        if JvmLock.held_here(spark, path):
            raise CheckpointError(
                f"the checkpoint {storage.location} is in use by another query of this Spark "
                f"session; stop that query first, or use another checkpoint"
            )
        if time.monotonic() >= deadline:
            raise CheckpointError(
                f"the checkpoint {storage.location} is in use after a wait of {wait:g} s: "
                f"{_describe_holder(storage)} is still running; stop it, or use another checkpoint"
            )
        # In the caller's thread, which has nothing else to do: no lock tells when it is free.
        time.sleep(_POLL_SECONDS)
    return lock


def _start_run(storage: Storage, holder: _Holder) -> tuple[int, bytes]:
    mark = msgspec.json.encode(holder)
    for _ in range(_MAX_RACES):
        run = _newest_run(storage) + 1
        try:
            storage.create(_run_name(run), mark)
        except FileExistsError:
            continue  # a run that starts at the same time has the number; the next one is newer
        return run, mark
    raise CheckpointError(
        f"cannot claim the checkpoint {storage.location}: too many runs start at once"
    )


def _prune_runs(storage: Storage, run: int) -> None:
    for number in _runs(storage):
        if number <= run - _KEPT_RUNS:
            storage.delete(_run_name(number))


def _runs(storage: Storage) -> list[int]:
    return [int(f.name) for f in storage.list(_RUNS) if f.name.isascii() and f.name.isdecimal()]


def _newest_run(storage: Storage) -> int:
    return max(_runs(storage), default=0)


def _run_name(run: int) -> str:
    return f"{_RUNS}/{run}"


def _describe_holder(storage: Storage) -> str:
    """Say who the newest run is: the one in the way."""
    content = storage.read(_run_name(_newest_run(storage)), limit=_MAX_RUN_BYTES)
    try:
        return str(msgspec.json.decode(content or b"", type=_Holder))
    except MALFORMED_JSON:
        return "another run"


def _this_process(spark: SparkSession) -> _Holder:
    with java_errors("ask Spark's JVM for its process id"):
        pid: Any = jvm(spark).java.lang.ProcessHandle.current().pid()
    return _Holder(
        version=1,
        token=uuid.uuid4().hex,
        application=f"{spark.sparkContext.appName} ({spark.sparkContext.applicationId})",
        host=platform.node(),
        pid=int(pid),
    )
