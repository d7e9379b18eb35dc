"""Bring a segment from where it was written to where it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.entries import SEGMENTS, SegmentFile
from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from fanout.segments import OpenSegment
    from fanout.spark.checkpoint.storage import Storage

__all__ = ("publish",)


def publish(storage: Storage, segment: OpenSegment) -> SegmentFile:
    """Seal a segment and give it its name in the checkpoint, durably; it blocks.

    Raises:
        CheckpointError: If that is refused; the segment is gone then.
    """
    try:
        sealed = segment.seal()
        name = f"{SEGMENTS}/{sealed.path.name}"
        storage.publish(sealed.path, name)
    except OSError as error:
        segment.discard()
        raise CheckpointError(
            f"a segment cannot be written to {storage.location}: {error}; its records were not "
            f"acknowledged and come again"
        ) from error
    return SegmentFile(name=name, rows=sealed.rows, size=sealed.size)
