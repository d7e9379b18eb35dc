"""What `fanout doctor` finds at a checkpoint or a landing itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from fanout.cli.checkpoint_files import (
    checkpoint_files,
    describe_owner,
    is_local,
    landing_in_bucket,
)
from fanout.core.findings import fine, problem, warning
from fanout.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.findings import Finding
    from fanout.landing.storage.storage import StoredFiles

_DAMAGE: Final = "do not start a reader on it as it is"
# A segment has 128 MiB of records by default, and one is filled while another is published.
_NEEDED: Final = 256 << 20
_COMFORTABLE: Final = 1 << 30


def examine_stored(location: str) -> tuple[Checkpoint | None, list[Finding]]:
    """Read positions of a checkpoint, a landing or a local file; check their place and owner."""
    if is_local(location):
        return _examine_local(location)
    if (landing := landing_in_bucket(location)) is not None:
        return _examine_files(landing)
    from fanout.spark.hadoop.place_checks import examine_place  # noqa: PLC0415 - loads pyspark
    from fanout.spark.hadoop.quiet_session import quiet_session  # noqa: PLC0415 - loads pyspark

    with quiet_session() as spark:
        findings = examine_place(spark, location)
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
