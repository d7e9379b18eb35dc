"""How Kinesis users write down where to begin."""

from __future__ import annotations

import re
from typing import Final

from fanout.core.positions import Cursor, Horizon
from fanout.core.starts import Dialect

__all__ = ("DIALECT",)

# As many digits as a stored position may have.
_SEQUENCE: Final = re.compile(r"[0-9]{1,128}")


def _cursor(start: object) -> Cursor | None:
    """Read a sequence number, after which the shard is read."""
    if isinstance(start, str) and _SEQUENCE.fullmatch(start):
        return Cursor(int(start))
    return None


DIALECT: Final = Dialect(
    choices="'TRIM_HORIZON' (or 'earliest'), 'LATEST' (or 'latest'), or an aware datetime",
    cursor=_cursor,
    words={"trim_horizon": Horizon()},
    no_commits=(
        "Kinesis keeps no positions for its readers; continue a stream with what its positions "
        "said, by fanout.open(..., resume=...), or a query on its checkpoint"
    ),
)
