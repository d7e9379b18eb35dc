"""Every error that fanout raises, under one root.

The hierarchy is two deep, except for the kinds of MalformedEventError. `retryable` says whether the
same call may succeed later with nothing changed. The subscriber resubscribes after retryable errors
by itself, so the errors that reach a user are nearly always not retryable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fanout.core.sentence import Sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

__all__ = (
    "AcknowledgementError",
    "BadFrameError",
    "BadRecordError",
    "BadRowsError",
    "BatchFailedError",
    "BatchNotWrittenError",
    "CheckpointError",
    "DamagedFrameError",
    "DecodeFailedError",
    "EventTimeError",
    "FanOutError",
    "FencedError",
    "LanderCancelledError",
    "MalformedEventError",
    "OptionError",
    "PositionError",
    "RemoteError",
    "RetryLaterError",
    "ServiceError",
    "SetupError",
    "SilentProducerError",
    "SparkLostError",
    "SplitFailedError",
    "SplitLostError",
    "StreamStateError",
    "SubscribeTimeoutError",
    "SubscriptionEndedError",
    "SubscriptionSilentError",
    "UnconfirmedEndError",
    "UnwritableRecordError",
    "WriteTimeoutError",
)


class FanOutError(Exception):
    """Root of every error that fanout raises on purpose.

    Args:
        *parts: Its sentence, in one piece or in several; see `fanout.core.sentence`.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, *parts: object) -> None:
        super().__init__(Sentence(*parts))


class OptionError(FanOutError, ValueError):
    """An option is unknown, missing or out of range."""


class SetupError(FanOutError):
    """The environment lacks an extra, Java, credentials, or a Spark session that fits."""


class PositionError(FanOutError, ValueError):
    """A stored position cannot be used: malformed, of another version, or of another source."""


class StreamStateError(FanOutError, RuntimeError):
    """A call came at the wrong time: a second reader of one stream, or a stream that is closed."""


class ServiceError(FanOutError):
    """The service refused a call for good, or no longer has what the call names."""


class MalformedEventError(FanOutError):
    """Bytes from the service break their own format: a checksum, a length, a missing field."""

    retryable = True


class DamagedFrameError(MalformedEventError):
    """A frame of a subscription cannot be decoded, but where the next one begins is known."""


class UnconfirmedEndError(MalformedEventError):
    """A split sent one of the two signs of its end, so it is unknown whether it has ended.

    Args:
        message: A sentence for people.
        exhausted: Whether the sign was that nothing follows; otherwise it was that other splits
            replace this one.
    """

    def __init__(self, message: str, *, exhausted: bool = False) -> None:
        super().__init__(message)
        self.exhausted = exhausted


class RemoteError(FanOutError):
    """The service ended a subscription with an exception.

    Args:
        code: The service's name of the exception, for example `InternalFailureException`.
        message: The service's own sentence.
    """

    retryable = True

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


class SubscribeTimeoutError(FanOutError):
    """The service did not answer a subscribe call in time."""

    retryable = True


class SubscriptionSilentError(FanOutError):
    """A live subscription sent nothing, not even a heartbeat, for too long."""

    retryable = True


class SubscriptionEndedError(FanOutError):
    """The service ended a subscription before the end of its split; ordinary after 5 minutes."""

    retryable = True


class AcknowledgementError(FanOutError):
    """Acquired records were acknowledged too late; the service delivers them to any consumer again.

    Args:
        message: A sentence for people.
        records: Which records, as the source names pieces of its splits.
    """

    def __init__(self, message: str, records: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.records = records


class SplitFailedError(FanOutError):
    """A split cannot be read further; `__cause__` is the error that ended it."""


class SplitLostError(FanOutError):
    """A split went to another process of the group before a batch of it was acknowledged.

    The other process delivers again what was not acknowledged in time. The stream goes on.

    Args:
        message: A sentence for people.
        splits: The ids of the splits.
    """

    def __init__(self, message: str, splits: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.splits = splits


class EventTimeError(FanOutError):
    """The user's function for the event time raised, or returned no timestamps."""


class CheckpointError(FanOutError):
    """A checkpoint cannot be used: owned by a running query, of another source, or damaged."""


class BatchFailedError(FanOutError):
    """The user's handler raised; `__cause__` is its error. The next run replays the batch."""


class BatchNotWrittenError(FanOutError):
    """A sink or a writer could not write a batch, or not in time; readers see none of it.

    Where the sink does not write exactly once, they may see a part of it.
    """


class DecodeFailedError(FanOutError):
    """The user's `decode` or `on_bad_record` raised, or `decode` returned no valid records.

    `__cause__` is what was raised.
    """


class RetryLaterError(FanOutError):
    """Raise it in `decode` or `on_bad_record` where what they need is unavailable for now.

    A schema registry that does not answer is an example. The split waits, with growing pauses, and
    the function gets the same records again. No record is bad, and none is left out.
    """

    retryable = True


class BadFrameError(FanOutError):
    """A record in the topic of a shuffle is not a frame, or a row cannot be written as one."""


class BadRecordError(FanOutError):
    """A record of a share group was delivered too often, or cannot be read; the stream ends."""


class BadRowsError(FanOutError, ValueError):
    """Some rows of a batch cannot be decoded, or encoded.

    A `decode` that knows which ones may raise it. `__cause__` is the reason for the first of them.

    Args:
        decoded: The other rows, decoded or encoded.
        errors: The reason for each bad row, by its number in the batch.
    """

    def __init__(self, decoded: pa.RecordBatch, errors: Mapping[int, Exception]) -> None:
        if not errors:
            raise ValueError("a BadRowsError has one error at least")
        first = min(errors)
        super().__init__(
            f"{len(errors)} of the rows cannot be converted; row {first}: ", errors[first]
        )
        self.decoded = decoded
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[type[BadRowsError], tuple[object, ...]]:
        return BadRowsError, (self.decoded, self.errors)


class SilentProducerError(FanOutError):
    """A producer of a shuffle wrote nothing for `producer_timeout`."""


class SparkLostError(FanOutError):
    """Spark's JVM ended while a query ran; start the query again on the same checkpoint."""


class LanderCancelledError(FanOutError):
    """The Spark job of a lander was cancelled, for example in Spark's user interface.

    Start the query again on the same checkpoint.
    """


class UnwritableRecordError(FanOutError, ValueError):
    """A record cannot be written: it is too large, or the service has no such value."""


class WriteTimeoutError(FanOutError):
    """The service did not confirm records in time; they may have been written anyway."""

    retryable = True


class FencedError(FanOutError):
    """A newer run writes under the same name, or the transaction has ended; this run must stop."""
