"""The messages between landers and the coordinator: JSON, read strictly."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from fanout.core.checkpoint import Name, PositionWire  # noqa: TC001 - msgspec reads it
from fanout.core.progress import Moved
from fanout.core.remote_error import ErrorWire  # noqa: TC001 - msgspec reads it
from fanout.core.statistics import SplitState  # noqa: TC001 - msgspec reads it
from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError, SplitFailedError
from fanout.landing.segments.segment_file import SegmentFile  # noqa: TC001 - msgspec reads it

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class MessageError(FanOutError):
    """The other side sent something that is no message, or not at this point."""


class Hello(msgspec.Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    """A lander is ready.

    Args:
        lander: Its number, from 0.
        attempt: Which attempt of Spark's task it is; a later one has a higher number.
        host: The name of its machine.
        pid: Its process.
    """

    lander: _Count
    attempt: _Count
    host: _Text
    pid: _Count


class SplitWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split and its parents."""

    id: Name
    parents: tuple[Name, ...] = ()


class Piece(Moved, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a split was read.

    Args:
        split: The split.
        after: Its position in the message before.
        until: Its position now; the records between the two are in the segment of the message.
        children: The splits that replace it, where it has ended.
    """

    split: Name
    after: PositionWire
    until: PositionWire
    children: tuple[SplitWire, ...] = ()


class Landed(msgspec.Struct, frozen=True, tag="landed", forbid_unknown_fields=True):
    """Records are durable, or splits have moved on without records.

    Args:
        seq: How many such messages came before in this session.
        segment: The records; None where there are none.
        pieces: The splits that have moved on.
    """

    seq: _Count
    segment: SegmentFile | None
    pieces: tuple[Piece, ...]


class Released(msgspec.Struct, frozen=True, tag="released", forbid_unknown_fields=True):
    """Splits are read no longer; all that was read of them has landed."""

    splits: tuple[Name, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """The lander cannot go on, for a reason that ends the query.

    Args:
        error: The reason.
        landed: Whether all that was read before the failure has landed; a message without it comes
            as soon as the failure is known.
        begun: Whether the lander could begin; another attempt of it may.
    """

    error: ErrorWire
    landed: bool = True
    begun: bool = True

    def failure(self) -> FanOutError:
        """Return the error that ends the query."""
        return self.error.error(unknown=lambda text: SplitFailedError(f"a lander failed: {text}"))


class SplitReport(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The counters of a split since it was assigned; see `SplitStatistics`."""

    split: Name
    state: SplitState
    bytes: _Count
    subscriptions: _Count = 0
    resubscriptions: _Count = 0
    cause: _Text = ""
    lag: float | None = None
    behind: int | None = None
    gaps: _Count = 0
    gap_seconds: float = 0.0
    waiting: float | None = None
    bad_records: _Count = 0


class Resubscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription is to be opened again; see `OnResubscribe`.

    Args:
        split: Its split.
        cause: The error that ended the one before.
        code: What the service calls it; see `Terms.cause`.
        delay: Seconds until the next attempt.
    """

    split: Name
    cause: ErrorWire
    code: _Text
    delay: float


class Report(msgspec.Struct, frozen=True, tag="report", forbid_unknown_fields=True):
    """The lander's counters; it sends one each second, also as a sign of life.

    Args:
        splits: The splits that have changed since the last report.
        bytes_in_flight: Bytes of events that wait for the lander.
        held: Records that it has read and not landed.
        resubscribed: The newest resubscriptions since the last report.
        throttled: Answers since the last report by which the service slows the lander down.
    """

    splits: tuple[SplitReport, ...]
    bytes_in_flight: _Count
    held: _Count = 0
    resubscribed: tuple[Resubscription, ...] = ()
    throttled: _Count = 0


class Welcome(msgspec.Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """The coordinator takes a lander in.

    Args:
        epoch: The number of the session, which no other session of the run has.
    """

    epoch: _Count


class Superseded(msgspec.Struct, frozen=True, tag="superseded", forbid_unknown_fields=True):
    """A newer attempt of the lander is connected; this one may be needed when that is gone."""


class Assigned(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A split to read, and where to begin.

    Args:
        split: The split.
        parents: Its parents, which were read.
        position: What lies behind it is wanted.
        newest: When the last record before the position arrived at the service.
        watermark: The split's watermark at the position.
    """

    split: Name
    parents: tuple[Name, ...]
    position: PositionWire
    newest: int | None = None
    watermark: int | None = None


class Assign(msgspec.Struct, frozen=True, tag="assign", forbid_unknown_fields=True):
    """Read these splits too."""

    splits: tuple[Assigned, ...]


class Release(msgspec.Struct, frozen=True, tag="release", forbid_unknown_fields=True):
    """Stop to read these splits, and land what was read of them."""

    splits: tuple[Name, ...]


class Wanted(msgspec.Struct, frozen=True, tag="wanted", forbid_unknown_fields=True):
    """Spark waits: land what is there."""


class Credit(msgspec.Struct, frozen=True, tag="credit", forbid_unknown_fields=True):
    """The lander may land segments: at first, and when a batch has taken one.

    Args:
        segments: How many more it may land.
    """

    segments: _Count


class Beat(msgspec.Struct, frozen=True, tag="beat", forbid_unknown_fields=True):
    """The coordinator is there; it sends one each second."""


class Stop(msgspec.Struct, frozen=True, tag="stop", forbid_unknown_fields=True):
    """Close all subscriptions and end."""


FromLander: TypeAlias = Hello | Landed | Released | Failed | Report
FromCoordinator: TypeAlias = Welcome | Superseded | Assign | Release | Wanted | Credit | Beat | Stop

_FROM_LANDER: Final[msgspec.json.Decoder[FromLander]] = msgspec.json.Decoder(FromLander)
_FROM_COORDINATOR: Final[msgspec.json.Decoder[FromCoordinator]] = msgspec.json.Decoder(
    FromCoordinator
)


def encode(message: FromLander | FromCoordinator) -> bytes:
    """Return the bytes of a message."""
    return msgspec.json.encode(message)


def from_lander(data: bytes) -> FromLander:
    """Read a lander's message.

    Raises:
        MessageError: If the bytes are not a valid message.
    """
    try:
        return _FROM_LANDER.decode(data)
    except MALFORMED_JSON as error:
        raise MessageError("a lander sent what is no message of this version") from error


def from_coordinator(data: bytes) -> FromCoordinator:
    """Read the coordinator's message.

    Raises:
        MessageError: If the bytes are not a valid message.
    """
    try:
        return _FROM_COORDINATOR.decode(data)
    except MALFORMED_JSON as error:
        raise MessageError("the coordinator sent what is no message of this version") from error
