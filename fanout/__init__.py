"""Reactive fan-out: long-lived subscriptions into asyncio and exact Spark micro-batches.

    async with fanout.open(source) as stream:
        async for batch in stream:
            ...
            await stream.acknowledge(batch)

Sources come from their sub-packages, for example `fanout.kinesis.KinesisSource`; `fanout.spark`
hands the same streams to Spark.
"""

from fanout.core.backoff import Backoff
from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Drained
from fanout.core.event_time import EventTime
from fanout.core.events import Batch, Gap, Split
from fanout.core.fan_out import FanOut
from fanout.core.opening import open_stream as open  # noqa: A004 - read as `fanout.open(...)`
from fanout.core.opening import resolve_start
from fanout.core.positions import Committed, Cursor, Horizon, Latest, Range, Timestamp
from fanout.core.statistics import LendingStatistics, SplitState, SplitStatistics, Statistics
from fanout.errors import (
    AcknowledgementError,
    BatchFailedError,
    CheckpointError,
    DamagedFrameError,
    EventTimeError,
    FanOutError,
    MalformedEventError,
    OptionError,
    PositionError,
    RemoteError,
    ServiceError,
    SetupError,
    SparkLostError,
    SplitFailedError,
    StreamStateError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
    UnconfirmedEndError,
)

__all__ = (
    "AcknowledgementError",
    "Backoff",
    "Batch",
    "BatchFailedError",
    "Checkpoint",
    "CheckpointError",
    "Committed",
    "Cursor",
    "DamagedFrameError",
    "Drained",
    "EventTime",
    "EventTimeError",
    "FanOut",
    "FanOutError",
    "Gap",
    "Horizon",
    "Latest",
    "LendingStatistics",
    "MalformedEventError",
    "OptionError",
    "PositionError",
    "Range",
    "RemoteError",
    "ServiceError",
    "SetupError",
    "SparkLostError",
    "Split",
    "SplitFailedError",
    "SplitState",
    "SplitStatistics",
    "Statistics",
    "StreamStateError",
    "SubscribeTimeoutError",
    "SubscriptionEndedError",
    "SubscriptionSilentError",
    "Timestamp",
    "UnconfirmedEndError",
    "open",
    "resolve_start",
)
