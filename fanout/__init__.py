"""Reactive fan-out: long-lived subscriptions into asyncio and exact Spark micro-batches.

    async with fanout.open(source) as stream:
        async for batch in stream:
            ...
            await stream.acknowledge(batch)

Sources come from their sub-packages, for example `fanout.kinesis.KinesisSource`; `fanout.spark`
hands the same streams to Spark, and `fanout.land` writes them to Parquet files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports
from fanout.core.backoff import Backoff
from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Drained
from fanout.core.event_time import EventTime
from fanout.core.events import BadRecords, Batch, Gap, Split
from fanout.core.fan_out import FanOut
from fanout.core.lending.stream_lending import StreamLending
from fanout.core.opening import open_stream as open  # noqa: A004 - read as `fanout.open(...)`
from fanout.core.opening import resolve_start
from fanout.core.positions import Committed, Cursor, Horizon, Latest, Range, Timestamp
from fanout.core.statistics import (
    BatchStatistics,
    LanderStatistics,
    LendingStatistics,
    MembershipStatistics,
    Origin,
    SinkStatistics,
    SplitState,
    SplitStatistics,
    Statistics,
    StreamTotals,
    TableStatistics,
    TransactionStatistics,
    WriterStatistics,
)
from fanout.errors import (
    AcknowledgementError,
    BadFrameError,
    BadRecordError,
    BadRowsError,
    BatchFailedError,
    BatchNotWrittenError,
    CheckpointError,
    DamagedFrameError,
    DecodeFailedError,
    EventTimeError,
    FanOutError,
    FencedError,
    LanderCancelledError,
    MalformedEventError,
    OptionError,
    PositionError,
    RemoteError,
    RetryLaterError,
    ServiceError,
    SetupError,
    SilentProducerError,
    SparkLostError,
    SplitFailedError,
    SplitLostError,
    StreamStateError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
    UnconfirmedEndError,
    UnwritableRecordError,
    WriteTimeoutError,
)

if TYPE_CHECKING:
    from fanout.landers.land import land
    from fanout.landing.lander import Landing
    from fanout.landing.log.followed import LandedEntry, followed
    from fanout.landing.projections.delta import DeltaTable
    from fanout.landing.projections.iceberg import IcebergTable

__all__ = (
    "AcknowledgementError",
    "Backoff",
    "BadFrameError",
    "BadRecordError",
    "BadRecords",
    "BadRowsError",
    "Batch",
    "BatchFailedError",
    "BatchNotWrittenError",
    "BatchStatistics",
    "Checkpoint",
    "CheckpointError",
    "Committed",
    "Cursor",
    "DamagedFrameError",
    "DecodeFailedError",
    "DeltaTable",
    "Drained",
    "EventTime",
    "EventTimeError",
    "FanOut",
    "FanOutError",
    "FencedError",
    "Gap",
    "Horizon",
    "IcebergTable",
    "LandedEntry",
    "LanderCancelledError",
    "LanderStatistics",
    "Landing",
    "Latest",
    "LendingStatistics",
    "MalformedEventError",
    "MembershipStatistics",
    "OptionError",
    "Origin",
    "PositionError",
    "Range",
    "RemoteError",
    "RetryLaterError",
    "ServiceError",
    "SetupError",
    "SilentProducerError",
    "SinkStatistics",
    "SparkLostError",
    "Split",
    "SplitFailedError",
    "SplitLostError",
    "SplitState",
    "SplitStatistics",
    "Statistics",
    "StreamLending",
    "StreamStateError",
    "StreamTotals",
    "SubscribeTimeoutError",
    "SubscriptionEndedError",
    "SubscriptionSilentError",
    "TableStatistics",
    "Timestamp",
    "TransactionStatistics",
    "UnconfirmedEndError",
    "UnwritableRecordError",
    "WriteTimeoutError",
    "WriterStatistics",
    "followed",
    "land",
    "open",
    "resolve_start",
)

# Parquet is loaded when something is landed.
__getattr__, _ = lazy_exports(
    __name__,
    {
        "DeltaTable": "fanout.landing.projections.delta",
        "IcebergTable": "fanout.landing.projections.iceberg",
        "LandedEntry": "fanout.landing.log.followed",
        "Landing": "fanout.landing.lander",
        "followed": "fanout.landing.log.followed",
        "land": "fanout.landers.land",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
