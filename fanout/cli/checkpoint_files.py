"""Checkpoints and landings as commands reach them.

Local ones and landings in buckets need no Spark; others are read through a quiet session.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fanout.errors import FanOutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.landing.claims import Owner
    from fanout.landing.storage.storage import StoredFiles


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
    from fanout.spark.hadoop.quiet_session import quiet_session  # noqa: PLC0415 - it loads pyspark
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
