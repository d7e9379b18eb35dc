"""Checkpoints and landings as commands reach them, and what `fanout doctor` finds there.

Local ones and landings in buckets need no Spark; others are read through a quiet session.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from fanout.core.findings import fine, problem, warning
from fanout.errors import CheckpointError, FanOutError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.findings import Finding
    from fanout.landing.claims import Owner
    from fanout.landing.storage.storage import StoredFiles

_DAMAGE: Final = "do not start a reader on it as it is"
# A segment has 128 MiB of records by default, and one is filled while another is published.
_NEEDED: Final = 256 << 20
_COMFORTABLE: Final = 1 << 30


def is_local(location: str) -> bool:
    """Say whether a checkpoint location is a path, or a URI of the scheme `file`."""
    try:
        return urlsplit(location).scheme in {"", "file"}
    except ValueError:
        return True  # reading it says what is wrong


@contextmanager
def checkpoint_files(location: str) -> Iterator[StoredFiles]:
    """Open a landing, or the directory of fanout in a checkpoint location, for reading alone.

    For a checkpoint with another scheme than `file` a Spark session is started.
    """
    if is_local(location):
        from fanout.landing.log.checkpoint_status import (  # noqa: PLC0415 - for help
            local_path,
            stored_files,
        )

        yield stored_files(local_path(location, "checkpoints"))
        return
    if (landing := landing_in_bucket(location)) is not None:
        yield landing
        return
    from fanout.spark.hadoop.remote_checkpoint import quiet_session  # noqa: PLC0415 - it loads pyspark
    from fanout.spark.hadoop.storage import open_files  # noqa: PLC0415 - it loads pyspark

    with quiet_session() as spark:
        yield open_files(spark, location)


def landing_in_bucket(location: str) -> StoredFiles | None:
    """Return the files of a landing on object storage; None where none is found."""
    from fanout.landing.log.entries import MAX_ENTRY_BYTES, ORIGIN  # noqa: PLC0415 - for help
    from fanout.landing.storage.object_location import is_object_location  # noqa: PLC0415 - for help
    from fanout.landing.storage.opening import open_files  # noqa: PLC0415 - for help

    if not is_object_location(location):
        return None
    try:
        files = open_files(location, None)
        return None if files.read(ORIGIN, limit=MAX_ENTRY_BYTES) is None else files
    except FanOutError:
        return None  # Spark may have the library or the credentials, and otherwise says what lacks


def describe_owner(owner: Owner | None) -> str:
    """Say which run owns a checkpoint, since when, and whether it runs."""
    if owner is None:
        return "no run has claimed it yet"
    holder = f", {owner.holder}" if owner.holder else ""
    running = {True: "; it is running", False: "; it has ended", None: ""}[owner.running]
    return f"run {owner.run}{holder}, since {moment(owner.since)}{running}"


def moment(millis: int) -> str:
    """Return a time in milliseconds since the Unix epoch as people and programs read it."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def examine_stored(location: str) -> tuple[Checkpoint | None, list[Finding]]:
    """Read positions of a checkpoint, a landing or a local file; check their place and owner."""
    if is_local(location):
        return _examine_local(location)
    if (landing := landing_in_bucket(location)) is not None:
        return _examine_files(landing)
    from fanout.spark.hadoop.remote_checkpoint import (  # noqa: PLC0415 - loads pyspark
        examine_location,
        quiet_session,
    )

    with quiet_session() as spark:
        findings = examine_location(spark, location)
        if any(each.status == "problem" for each in findings):
            return None, findings
        try:
            with checkpoint_files(location) as files:
                positions, others = _examine_files(files)
        except OptionError as error:
            return None, [*findings, fine("checkpoint", str(error))]
    return positions, [*findings, *others]


def _examine_files(files: StoredFiles) -> tuple[Checkpoint | None, list[Finding]]:
    from fanout.landing.log.checkpoint_status import read_status  # noqa: PLC0415 - for help

    try:
        status = read_status(files)
    except CheckpointError as error:
        return None, [problem("checkpoint", str(error), _DAMAGE)]
    owner = fine("owner", describe_owner(status.owner))
    return status.pending.positions or status.positions, [owner]


def _examine_local(location: str) -> tuple[Checkpoint | None, list[Finding]]:
    from fanout.landing.claims import read_owner  # noqa: PLC0415 - for help
    from fanout.landing.log.checkpoint_status import local_path, read_positions  # noqa: PLC0415 - for help

    path = local_path(location, "positions")
    try:
        positions = read_positions(location)
        if not path.is_dir():
            return positions, []
        with checkpoint_files(location) as files:
            owner = read_owner(files)
    except CheckpointError as error:
        return None, [problem("checkpoint", str(error), _DAMAGE)]
    found = [] if owner is None else [fine("owner", describe_owner(owner))]
    return positions, [*found, _free_space(path)]


def _free_space(path: Path) -> Finding:
    """Check whether the disk of a path has room for what comes."""
    check, advice = "free space", "free some; a full disk ends the run, and what is stored stays"
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    left = f"{free / 1e9:,.1f} GB"
    if disk.f_files and not disk.f_favail:  # some file systems count none
        return problem(check, f"the disk of {path} takes no more files", advice)
    if free < _NEEDED:
        return problem(check, f"{left} on the disk of {path}, less than two segments take", advice)
    if free < _COMFORTABLE:
        return warning(check, f"{left} on the disk of {path}", advice)
    return fine(check, left)
