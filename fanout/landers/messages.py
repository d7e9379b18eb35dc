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
from fanout.landing.segments.bad_records import StagedFile  # noqa: TC001 - msgspec reads it
from fanout.landing.segments.segments import SegmentFile  # noqa: TC001 - msgspec reads it

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class MessageError(FanOutError):
    """The other side sent something that is no message, or not at this point."""


class Hello(msgspec.Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    """A lander is ready."""

    lander: _Count  # its number, from 0
    attempt: _Count  # of Spark's task; a later one has a higher number
    host: _Text  # the name of its machine
    pid: _Count  # its process


class SplitWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split and its parents."""

    id: Name
    parents: tuple[Name, ...] = ()


class Piece(Moved, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a split was read."""

    split: Name
    after: PositionWire  # its position in the message before
    # Its position now; the records between the two are in the segment of the message.
    until: PositionWire
    children: tuple[SplitWire, ...] = ()  # the splits that replace it, where it has ended


class Landed(msgspec.Struct, frozen=True, tag="landed", forbid_unknown_fields=True):
    """Records are durable, or splits have moved on without records."""

    seq: _Count  # how many such messages came before in this session
    # The records; one file where the landing has one directory, and none where there are none.
    files: tuple[SegmentFile, ...]
    pieces: tuple[Piece, ...]  # the splits that have moved on
    bad: StagedFile | None = None  # the bad records among them

    @property
    def rows(self) -> int:
        """The number of the records."""
        return sum(file.rows for file in self.files) + (0 if self.bad is None else self.bad.rows)

    @property
    def last_file(self) -> str:
        """The name of a file of the records; empty where there are none."""
        if self.files:
            return self.files[-1].name
        return "" if self.bad is None else self.bad.name


class Released(msgspec.Struct, frozen=True, tag="released", forbid_unknown_fields=True):
    """Splits are read no longer; all that was read of them has landed."""

    splits: tuple[Name, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """The lander cannot go on, for a reason that ends the query."""

    error: ErrorWire
    # Whether all that was read before the failure has landed; a message without it comes as soon as
    # the failure is known.
    landed: bool = True
    begun: bool = True  # whether the lander could begin; another attempt of it may

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
    """A subscription is to be opened again; see `OnResubscribe`."""

    split: Name
    cause: ErrorWire  # the error that ended the one before
    code: _Text  # what the service calls it; see `Terms.cause`
    delay: float  # seconds until the next attempt


class Report(msgspec.Struct, frozen=True, tag="report", forbid_unknown_fields=True):
    """The lander's counters; it sends one each second, also as a sign of life."""

    splits: tuple[SplitReport, ...]  # those that have changed since the last report
    bytes_in_flight: _Count  # bytes of events that wait for the lander
    held: _Count = 0  # records that it has read and not landed
    resubscribed: tuple[Resubscription, ...] = ()  # the newest since the last report
    # Answers since the last report by which the service slows the lander down.
    throttled: _Count = 0


class Welcome(msgspec.Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """The coordinator takes a lander in."""

    epoch: _Count  # the number of the session, which no other session of the run has


class Superseded(msgspec.Struct, frozen=True, tag="superseded", forbid_unknown_fields=True):
    """A newer attempt of the lander is connected; this one may be needed when that is gone."""


class Assigned(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A split to read, and where to begin."""

    split: Name
    parents: tuple[Name, ...]  # they were read
    position: PositionWire  # what lies behind it is wanted
    newest: int | None = None  # when the last record before the position arrived at the service
    watermark: int | None = None  # the split's watermark at the position


class Assign(msgspec.Struct, frozen=True, tag="assign", forbid_unknown_fields=True):
    """Read these splits too."""

    splits: tuple[Assigned, ...]


class Release(msgspec.Struct, frozen=True, tag="release", forbid_unknown_fields=True):
    """Stop to read these splits, and land what was read of them."""

    splits: tuple[Name, ...]


class Wanted(msgspec.Struct, frozen=True, tag="wanted", forbid_unknown_fields=True):
    """Spark waits: land what is there."""


class Credit(msgspec.Struct, frozen=True, tag="credit", forbid_unknown_fields=True):
    """The lander may land so many more segments: at first, and when a batch has taken one."""

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
    """Read a lander's message, or raise MessageError."""
    try:
        return _FROM_LANDER.decode(data)
    except MALFORMED_JSON as error:
        raise MessageError("a lander sent what is no message of this version") from error


def from_coordinator(data: bytes) -> FromCoordinator:
    """Read the coordinator's message, or raise MessageError."""
    try:
        return _FROM_COORDINATOR.decode(data)
    except MALFORMED_JSON as error:
        raise MessageError("the coordinator sent what is no message of this version") from error
