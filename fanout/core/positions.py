"""Positions in a split, and the starts that resolve to them.

A `Start` is what a user writes; a `Position` is concrete and can be stored. `Latest` and
`Committed` are starts only: a connection resolves them once into a timestamp or a cursor, and that
is what a checkpoint holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias, final

from fanout.core.option_checks import wrong_type
from fanout.errors import OptionError

# Larger than any sub-sequence number: the cursor stands after the whole record.
WHOLE_RECORD: Final = 2**63 - 1


@final
@dataclass(frozen=True, slots=True)
class Horizon:
    """Before the oldest record that the service still has."""


@final
@dataclass(frozen=True, slots=True)
class Latest:
    """After the newest record at the moment when the stream first opens; a start, no position."""


@final
@dataclass(frozen=True, slots=True)
class Committed:
    """Where the consumer group stands when the stream first opens; a start, no position.

    Args:
        reset: Where a split begins for which the group has committed nothing; None makes that an
            error, which names these splits.

    Raises:
        OptionError: If `reset` is anything else.
    """

    reset: Literal["earliest", "latest"] | None = None

    def __post_init__(self) -> None:
        if self.reset not in (None, "earliest", "latest"):
            raise OptionError(
                f"reset={self.reset!r} is not understood; use 'earliest', 'latest' or None"
            )


@final
@dataclass(frozen=True, slots=True)
class Timestamp:
    """Before the first record that arrived at or after a time.

    Args:
        millis: Milliseconds since the Unix epoch, as the services count.

    Raises:
        OptionError: If it is negative: no service has records from before 1970.
    """

    millis: int

    def __post_init__(self) -> None:
        if not isinstance(self.millis, int):
            raise wrong_type("millis", self.millis, "a whole number of milliseconds")
        if self.millis < 0:
            raise OptionError(f"the timestamp of {self.millis} ms lies before 1970")

    @classmethod
    def at(cls, moment: datetime) -> Timestamp:
        """Build a timestamp from an aware datetime.

        Raises:
            OptionError: If the datetime is naive: its zone would be a guess.
        """
        if not isinstance(moment, datetime):
            raise wrong_type("moment", moment, "an aware datetime")
        if moment.tzinfo is None:
            raise OptionError(
                f"{moment.isoformat()} has no time zone; pass an aware datetime, for example "
                f"datetime(..., tzinfo=timezone.utc)"
            )
        return cls((moment - _EPOCH) // _MILLISECOND)


@final
@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """After one record; cursors of one split are totally ordered.

    Args:
        sequence: The sequence number or offset of the last record that was read; -1 where that
            would be the one before offset 0 of a Kafka partition.
        sub: The last sub-record that was read of an aggregated record; the default stands after
            the whole record.
        state: What the source needs in order to continue here, as text that it alone reads;
            most sources need nothing. It takes no part in comparisons.

    Raises:
        OptionError: If the sequence number is below -1.
    """

    sequence: int
    sub: int = WHOLE_RECORD
    state: str = field(default="", kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.sequence, int):
            raise wrong_type("sequence", self.sequence, "a whole number")
        if self.sequence < -1:
            raise OptionError(
                f"the sequence number {self.sequence} must not be negative, but for -1, which "
                f"stands before offset 0"
            )


Start: TypeAlias = Horizon | Latest | Timestamp | Committed
Position: TypeAlias = Horizon | Timestamp | Cursor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = datetime.resolution * 1000


def reaches(position: Position, other: Position) -> bool:
    """Tell whether `position` is at or after `other` in the same split.

    A reader moves from the horizon or a timestamp to cursors and never back, so the three kinds
    are ordered that way.
    """
    return _rank(position) >= _rank(other)


def _rank(position: Position) -> tuple[int, int, int]:
    match position:
        case Horizon():
            return (0, 0, 0)
        case Timestamp(millis):
            return (1, millis, 0)
        case Cursor(sequence, sub):
            return (2, sequence, sub)


@final
@dataclass(frozen=True, slots=True)
class Range:
    """The piece of a split that a batch covers.

    Args:
        after: Where the reader stood before the batch.
        until: Where it stands after it; records of the split beyond `until` are in later batches.
    """

    after: Position
    until: Position
