"""Every error that fanout raises, under one root.

The hierarchy is two deep, but for the kinds of MalformedEventError. `retryable` says whether the
same call may succeed later without anyone changing anything; the subscriber resubscribes after
retryable errors by itself, so what reaches a user is nearly always not.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = (
    "AcknowledgementError",
    "BadFrameError",
    "BadRecordError",
    "BatchFailedError",
    "BatchNotWrittenError",
    "CheckpointError",
    "DamagedFrameError",
    "DecodeFailedError",
    "EventTimeError",
    "FanOutError",
    "FencedError",
    "MalformedEventError",
    "OptionError",
    "PositionError",
    "RemoteError",
    "ServiceError",
    "SetupError",
    "SilentProducerError",
    "SparkLostError",
    "SplitFailedError",
    "StreamStateError",
    "SubscribeTimeoutError",
    "SubscriptionEndedError",
    "SubscriptionSilentError",
    "UnconfirmedEndError",
    "UnwritableRecordError",
    "WriteTimeoutError",
)


class FanOutError(Exception):
    """Root of every error that fanout raises on purpose."""

    retryable: ClassVar[bool] = False


class OptionError(FanOutError, ValueError):
    """An option is unknown, missing or out of range."""


class SetupError(FanOutError):
    """The environment lacks something: an extra, Java, credentials, a Spark session that fits."""


class PositionError(FanOutError, ValueError):
    """A stored position cannot be used: malformed, of another version, or of another source."""


class StreamStateError(FanOutError, RuntimeError):
    """A call came at the wrong time: two readers of one stream, or a stream that is closed."""


class ServiceError(FanOutError):
    """The service refused a call for good, or lost what the call was about."""


class MalformedEventError(FanOutError):
    """Bytes from the service break their own format: a checksum, a length, a missing field."""

    retryable = True


class DamagedFrameError(MalformedEventError):
    """A frame of a subscription cannot be decoded, but where the next one begins is known."""


class UnconfirmedEndError(MalformedEventError):
    """A split sent one sign of its end without the other, so nobody knows whether it has ended.

    Args:
        message: A sentence for people.
        exhausted: Whether the sign was that nothing follows; else it was that others replace it.
    """

    def __init__(self, message: str, *, exhausted: bool = False) -> None:
        super().__init__(message)
        self.exhausted = exhausted


class RemoteError(FanOutError):
    """The service ended a subscription with an exception of its own.

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
    """The service ended a subscription although its split goes on; ordinary after 5 minutes."""

    retryable = True


class AcknowledgementError(FanOutError):
    """Records that were lent were acknowledged too late; they come again, to anybody.

    Args:
        message: A sentence for people.
        records: Which records, as the source names pieces of its splits.
    """

    def __init__(self, message: str, records: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.records = records


class SplitFailedError(FanOutError):
    """A split cannot go on: the poison pill. `__cause__` is the error that ended it."""


class EventTimeError(FanOutError):
    """The function for the event time raised, or returned no timestamps; its split cannot go on."""


class CheckpointError(FanOutError):
    """A checkpoint cannot be used: owned by a running query, of another source, or damaged."""


class BatchFailedError(FanOutError):
    """The user's handler raised; `__cause__` is what it raised. The batch is replayed."""


class BatchNotWrittenError(FanOutError):
    """A batch could not be written to Kafka, or not in time; readers see nothing of it.

    Where `delivery_guarantee` is not "exactly_once", they may see a part of it.
    """


class DecodeFailedError(FanOutError):
    """The user's `decode` raised, or returned what cannot be delivered; `__cause__` says which."""


class BadFrameError(FanOutError):
    """A record in the topic of a shuffle is no frame of it, or a row cannot become one."""


class BadRecordError(FanOutError):
    """A record of a share group came too often, or cannot be read, and that ends the stream."""


class SilentProducerError(FanOutError):
    """A producer of a shuffle wrote nothing for `producer_timeout`, and that is not to be borne."""


class SparkLostError(FanOutError):
    """Spark's JVM has gone away under a query; start it again on the same checkpoint."""


class UnwritableRecordError(FanOutError, ValueError):
    """A record cannot be written to Kafka: too large, or with something that Kafka has not."""


class WriteTimeoutError(FanOutError):
    """Kafka did not confirm records in time; they may have been written nevertheless."""

    retryable = True


class FencedError(FanOutError):
    """A newer run writes under the same name, or the transaction has ended; ours must stop."""
