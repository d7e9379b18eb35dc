"""A published segment, as the log and its readers know it."""

from __future__ import annotations

from typing import Annotated, Final, final

import msgspec

SEGMENTS: Final = "segments"

Count = Annotated[int, msgspec.Meta(ge=0)]


@final
class SegmentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published segment, as the ledger remembers it."""

    # Below the checkpoint.
    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^segments/(date=[0-9]{4}-[0-9]{2}-[0-9]{2}/)?[a-z0-9-]+\.parquet\Z",
            max_length=120,
        ),
    ]
    rows: Count  # its records
    size: Count  # its bytes on disk
