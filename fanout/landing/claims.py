"""Claims: which run may write a checkpoint, and which one does."""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import struct
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self, final

import msgspec

from fanout.core.lifecycle_log import LogEvent, write
from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import CheckpointError
from fanout.landing.segments.segments import SEGMENTS, run_of
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

    from fanout.landing.storage.storage import Storage, StoredFiles

LOCK: Final = "owner.lock"
MAX_RUN_BYTES: Final = 4096
_RUNS: Final = "runs"

# `struct flock` of fcntl(2) in 64 bits: Linux begins with the type, macOS and BSD with the range.
_FLOCK: Final = "hhqqi4x" if sys.platform == "linux" else "qqihh8x"
_TYPE: Final = 0 if sys.platform == "linux" else 3


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process of a run, for messages; the token differs between runs with the same number."""

    version: int
    token: str
    application: str
    host: str
    pid: int

    @classmethod
    def of(cls, application: str, pid: int) -> Self:
        """Describe a process of this machine."""
        return cls(1, uuid.uuid4().hex, application, platform.node(), pid)

    def __str__(self) -> str:
        # It is read back from a file: nothing in it may forge a line of a log.
        return f"application {self.application!r}, process {self.pid} on {self.host!r}"


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """The run that claimed a checkpoint last."""

    run: int
    holder: Holder | None  # its process; None where the file of the run cannot be read
    since: int  # when it claimed the checkpoint, in milliseconds since the Unix epoch
    running: bool | None  # whether it still runs; None for a remote checkpoint, which has no lock


def read_owner(files: StoredFiles) -> Owner | None:
    """Return the run that claimed a checkpoint last; None if none has. Nothing is claimed."""
    runs = {int(info.name): info for info in files.list(_RUNS) if _is_number(info.name)}
    if not runs:
        return None
    run = max(runs)
    running = is_claimed(files) if isinstance(files, LocalFiles) else None
    return Owner(run, _read_holder(files, run), runs[run].written_at, running)


def is_claimed(files: LocalFiles) -> bool:
    """Say whether another process runs a query on a local checkpoint. The lock is not taken."""
    path = files.root / LOCK
    try:
        return _is_locked(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CheckpointError(f"cannot look at the lock {path}: {error.strerror}") from error


def describe_holder(files: StoredFiles) -> str:
    """Describe the newest run, which holds the checkpoint."""
    holder = _read_holder(files, newest_run(files))
    return "another run" if holder is None else str(holder)


def newest_run(files: StoredFiles) -> int:
    """Return the number of the newest run; 0 before the first."""
    return max(run_numbers(files), default=0)


def run_numbers(files: StoredFiles) -> list[int]:
    """Return the numbers of the runs that are remembered."""
    return [int(info.name) for info in files.list(_RUNS) if _is_number(info.name)]


def run_name(run: int) -> str:
    """Return the name of a run's file below the checkpoint."""
    return f"{_RUNS}/{run}"


def _read_holder(files: StoredFiles, run: int) -> Holder | None:
    content = files.read(run_name(run), limit=MAX_RUN_BYTES)
    try:
        return msgspec.json.decode(content or b"", type=Holder)
    except MALFORMED_JSON:
        return None


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _is_locked(path: Path) -> bool:
    """Return whether another process holds a POSIX lock on a file, by F_GETLK, which takes none."""
    asked: list[int] = [0] * 5
    asked[_TYPE] = fcntl.F_WRLCK
    descriptor = os.open(path, os.O_RDONLY)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *asked))
    finally:
        os.close(descriptor)
    return bool(struct.unpack(_FLOCK, answer)[_TYPE] != fcntl.F_UNLCK)


_KEPT_RUNS = 5
_MAX_RACES = 100
_POLL_SECONDS = 0.1


class Lock(Protocol):
    """An exclusive lock on a file, held until `release` or until the process that took it ends."""

    @property
    def held(self) -> bool:
        """Whether the lock is still held."""

    def release(self) -> None:
        """Free the lock."""


@final
class PosixLock:
    """An exclusive lock on a file, held by this process until `release`, its death or `close`.

    A fork of the process does not hold it. It is the record lock of POSIX that the JVM takes as
    well (`java.nio.channels.FileLock`), so that it keeps a JVM away and is kept away by one. It
    does not keep this process away.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._process = os.getpid()

    @classmethod
    def try_acquire(cls, path: Path) -> Self | None:
        """Take the lock, or return None if another process has it; a missing file is made.

        A file system without locks is a CheckpointError, and so is a file that cannot be opened.
        """
        try:
            file = path.open("ab", buffering=0)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                file.close()
                raise
        except (BlockingIOError, PermissionError) as error:
            if isinstance(error, PermissionError) and error.filename is not None:
                raise CheckpointError(f"cannot lock {path}: {error.strerror}") from error
            return None  # EAGAIN or EACCES: another process has the lock
        except OSError as error:
            raise CheckpointError(f"cannot lock {path}: {error.strerror}") from error
        return cls(file)

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock."""
        return not self._file.closed and self._process == os.getpid()

    def release(self) -> None:
        """Free the lock."""
        self._file.close()


class LockingProcess(Protocol):
    """The process that owns a checkpoint: it locks a local one, and its death frees the lock."""

    def try_lock(self, path: Path) -> Lock | None:
        """Take the lock, or return None if this process or another one has it; make a missing file.

        A file system without locks is a CheckpointError, and so is a file that cannot be opened.
        """

    def has_locked(self, path: Path) -> bool:
        """Say whether this process has the lock, or is about to take it."""

    def describe(self) -> tuple[str, int]:
        """Return the name of the application, and the id of the process."""


@final
class ThisProcess:
    """This process, without a JVM; other runs name its application in their messages."""

    _locks: ClassVar[dict[Path, PosixLock]] = {}

    def __init__(self, application: str) -> None:
        self._application = application

    def try_lock(self, path: Path) -> PosixLock | None:
        """Take the lock, or return None if this process or another one has it."""
        if self.has_locked(path):
            return None  # to open and close the file once more would free the lock
        if (left := self._locks.pop(path.resolve(), None)) is not None:
            left.release()  # the parent's, in a fork: to close it later would free the new lock
        lock = PosixLock.try_acquire(path)
        if lock is not None:
            self._locks[path.resolve()] = lock
        return lock

    def has_locked(self, path: Path) -> bool:
        """Say whether this process has the lock."""
        lock = self._locks.get(path.resolve())
        return lock is not None and lock.held

    def describe(self) -> tuple[str, int]:
        """Return the name of the application, and the id of the process."""
        return self._application, os.getpid()


@dataclass(frozen=True, slots=True)
class Ownership:
    """A claim on a checkpoint, good until a newer run makes one."""

    storage: Storage
    # The number of this run, larger than that of every run before. Put it into what is written, so
    # that two runs never write the same bytes.
    run: int
    mark: bytes  # what this run wrote into its run file
    lock: Lock | None  # of a local checkpoint; None for a remote one

    def check(self) -> None:
        """Return if this run still owns the checkpoint; call it before every write.

        A newer run, a checkpoint that was removed, and one that cannot be read are a
        CheckpointError. A remote checkpoint costs two reads of small files, of which one is
        missing. A list would cost more, and lags behind in some stores.
        """
        if (loss := self.loss()) is not None:
            raise loss

    def loss(self) -> CheckpointError | None:
        """Return why this run no longer owns the checkpoint; None while it does.

        A checkpoint that cannot be read, so that its owner is unknown, is a CheckpointError.
        """
        mark = self.storage.read(run_name(self.run), limit=MAX_RUN_BYTES)
        # Runs take one number after the other.
        next_run = self.storage.read(run_name(self.run + 1), limit=MAX_RUN_BYTES)
        if mark == self.mark and next_run is None and (self.lock is None or self.lock.held):
            return None
        newer = next_run is not None or newest_run(self.storage) > self.run
        if newer or (mark is not None and mark != self.mark):
            return CheckpointError(
                f"{self.storage.location} was taken over by a newer run: "
                f"{describe_holder(self.storage)}; this run stops"
            )
        return CheckpointError(
            f"{self.storage.location} was removed or unlocked while it was in use; "
            "this run stops, because another one may own it by now"
        )


def create_owned(storage: Storage, ownership: Ownership, name: str, data: bytes) -> None:
    """Create a file of a checkpoint, as the run that owns it. It blocks.

    A newer run that has taken over is a CheckpointError.
    """
    ownership.check()
    try:
        storage.create(name, data)
    except FileExistsError as error:
        raise taken_error(storage, ownership, name) from error


def taken_error(storage: Storage, ownership: Ownership, name: str) -> CheckpointError:
    """Return why a run could not create a file, whose name is taken.

    Where it is known that a newer run has taken over, that is raised.
    """
    ownership.check()  # its error names the newer run
    return CheckpointError(
        f"{name} is already in {storage.location}: another run writes there; this run stops"
    )


@contextmanager
def claim(storage: Storage, process: LockingProcess, wait: float = 30.0) -> Iterator[Ownership]:
    """Own a checkpoint while the block runs; enter it before subscribing, deleting or aborting.

    On a local checkpoint the process holds a file lock; a run in another process waits for it, for
    `wait` seconds. On a remote one nothing is waited for: the newest run owns the checkpoint, and
    the older one fails at its next `check`.

    Raises:
        CheckpointError: Another run still holds a local checkpoint after `wait` seconds, or one of
            this process does, or the checkpoint cannot be written.
    """
    lock = _wait_for_lock(storage, process, wait) if isinstance(storage, LocalStorage) else None
    try:
        run, mark = _start_run(storage, Holder.of(*process.describe()))
        _prune_runs(storage, run)
        write(
            logging.INFO,
            LogEvent.CHECKPOINT_CLAIMED,
            "run %d owns %s%s",
            run,
            storage.location,
            "" if run == 1 else ", and earlier runs can no longer write there",
            fields={"fanout.run": run, "fanout.checkpoint": storage.location},
        )
        yield Ownership(storage, run, mark, lock)
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def claim_stopped(storage: LocalStorage, application: str) -> Iterator[Ownership]:
    """Own a local checkpoint without Spark while the block runs, if no query runs on it.

    A query that starts meanwhile waits, as for another query. A query that runs is a
    CheckpointError.
    """
    lock = PosixLock.try_acquire(storage.root / LOCK)
    if lock is None:
        raise CheckpointError(
            f"the checkpoint {storage.location} is in use: {describe_holder(storage)} is still "
            f"running; stop it first"
        )
    try:
        run, mark = _start_run(storage, Holder.of(application, os.getpid()))
        _prune_runs(storage, run)
        yield Ownership(storage, run, mark, lock)
    finally:
        lock.release()


def _wait_for_lock(storage: LocalStorage, process: LockingProcess, wait: float) -> Lock:
    deadline = time.monotonic() + wait
    path = storage.root / LOCK
    told = False
    while (lock := process.try_lock(path)) is None:
        if process.has_locked(path):
            raise CheckpointError(
                f"{storage.location} is in use by another run of this process; stop that one "
                f"first, or use another location"
            )
        if time.monotonic() >= deadline:
            raise CheckpointError(
                f"{storage.location} is in use after a wait of {wait:g} s: "
                f"{describe_holder(storage)} is still running; stop it, or use another location"
            )
        if not told:
            told = True
            write(
                logging.WARNING,
                LogEvent.CHECKPOINT_AWAITED,
                "waiting for %s for at most %g s: %s is still running",
                storage.location,
                wait,
                describe_holder(storage),
                fields={"fanout.wait": wait, "fanout.checkpoint": storage.location},
            )
        # In the caller's thread, which has nothing else to do: a lock does not report its release.
        time.sleep(_POLL_SECONDS)
    return lock


def _start_run(storage: Storage, holder: Holder) -> tuple[int, bytes]:
    mark = msgspec.json.encode(holder)
    run = newest_run(storage) or _newest_run_of_segments(storage)
    for _ in range(_MAX_RACES):
        run += 1
        try:
            storage.create(run_name(run), mark)
        except FileExistsError:
            # A run that starts at the same time has the number; or the list lags behind.
            run = max(newest_run(storage), run)
            continue
        return run, mark
    raise CheckpointError(f"cannot claim {storage.location}: too many runs start at once")


def _newest_run_of_segments(storage: Storage) -> int:
    """Return the highest number in the names of segments, which stay if somebody deletes the runs.

    A run of a number that was there before would write files of the same names.
    """
    names = (name.rpartition("/")[2] for name in storage.walk(SEGMENTS))
    return max((run for name in names if (run := run_of(name)) is not None), default=0)


def _prune_runs(storage: Storage, run: int) -> None:
    for number in run_numbers(storage):
        if number <= run - _KEPT_RUNS:
            storage.delete(run_name(number))
