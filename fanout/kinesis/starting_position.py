"""The positions where reading a shard begins: the `start` option, and the AWS request field.

The reference of StartingPosition is
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_StartingPosition.html.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fanout.core.positions import WHOLE_RECORD, Committed, Cursor, Horizon, Latest, Timestamp
from fanout.core.starts import Dialect, parse_start, start_of_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.events import Split
    from fanout.core.positions import Position

# The most digits that a stored position may have.
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9]{1,128}")


def _cursor(start: object) -> Cursor | None:
    """Parse a sequence number; the shard is read after it."""
    if isinstance(start, str) and _SEQUENCE_NUMBER.fullmatch(start):
        return Cursor(int(start))
    return None


def describe_position(position: Position) -> str:
    """Return where a shard is read from, for people."""
    match position:
        case Horizon():
            return "at TRIM_HORIZON"
        case Timestamp(millis):
            moment = datetime.fromtimestamp(millis / 1000, UTC)
            return f"at {moment.isoformat(timespec='milliseconds')}"
        case Cursor(sequence, sub):
            inside = "" if sub == WHOLE_RECORD else f"sub-sequence number {sub} of "
            return f"after {inside}sequence number {sequence}"


DIALECT: Final = Dialect(
    choices="'TRIM_HORIZON' (or 'earliest'), 'LATEST' (or 'latest'), or an aware datetime",
    cursor=_cursor,
    words={"trim_horizon": Horizon()},
    no_commits=(
        "Kinesis stores no positions for its readers; continue a stream from its stored "
        "`positions` with fanout.open(..., resume=...), or run a query on its checkpoint"
    ),
)
"""The words of the `start` option for Kinesis."""


def resolve_start(
    start: object, splits: Sequence[Split], server_time: datetime
) -> Mapping[str, Position]:
    """Turn the `start` option into a position for each shard; Latest is the service's time."""
    latest = Timestamp.at(server_time)
    positions: dict[str, Position] = {}
    for split_id, chosen in start_of_each(parse_start(start, DIALECT), splits, DIALECT).items():
        assert not isinstance(chosen, Committed), "the dialect refuses it"
        positions[split_id] = latest if isinstance(chosen, Latest) else chosen
    return positions


def starting_position(position: Position) -> dict[str, Any]:
    """Return a position as the StartingPosition of SubscribeToShard."""
    # A cursor is resumed AFTER its own record, which was delivered already, or AT it if only a part
    # of its sub-records was.
    match position:
        case Horizon():
            return {"Type": "TRIM_HORIZON"}
        case Timestamp(millis):
            return {"Type": "AT_TIMESTAMP", "Timestamp": millis / 1000}
        case Cursor(sequence, sub):
            side = "AFTER" if sub == WHOLE_RECORD else "AT"
            return {"Type": f"{side}_SEQUENCE_NUMBER", "SequenceNumber": str(sequence)}
