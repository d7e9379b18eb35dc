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

if TYPE_CHECKING:
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

# Most programs use few of these names, and Spark's workers none.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AcknowledgementError": "fanout.errors",
        "Backoff": "fanout.core.backoff",
        "BadFrameError": "fanout.errors",
        "BadRecordError": "fanout.errors",
        "BadRecords": "fanout.core.events",
        "BadRowsError": "fanout.errors",
        "Batch": "fanout.core.events",
        "BatchFailedError": "fanout.errors",
        "BatchNotWrittenError": "fanout.errors",
        "BatchStatistics": "fanout.core.statistics",
        "Checkpoint": "fanout.core.checkpoint",
        "CheckpointError": "fanout.errors",
        "Committed": "fanout.core.positions",
        "Cursor": "fanout.core.positions",
        "DamagedFrameError": "fanout.errors",
        "DecodeFailedError": "fanout.errors",
        "DeltaTable": "fanout.landing.projections.delta",
        "Drained": "fanout.core.drain",
        "EventTime": "fanout.core.event_time",
        "EventTimeError": "fanout.errors",
        "FanOut": "fanout.core.fan_out",
        "FanOutError": "fanout.errors",
        "FencedError": "fanout.errors",
        "Gap": "fanout.core.events",
        "Horizon": "fanout.core.positions",
        "IcebergTable": "fanout.landing.projections.iceberg",
        "LandedEntry": "fanout.landing.log.followed",
        "LanderCancelledError": "fanout.errors",
        "LanderStatistics": "fanout.core.statistics",
        "Landing": "fanout.landing.lander",
        "Latest": "fanout.core.positions",
        "LendingStatistics": "fanout.core.statistics",
        "MalformedEventError": "fanout.errors",
        "MembershipStatistics": "fanout.core.statistics",
        "OptionError": "fanout.errors",
        "Origin": "fanout.core.statistics",
        "PositionError": "fanout.errors",
        "Range": "fanout.core.positions",
        "RemoteError": "fanout.errors",
        "RetryLaterError": "fanout.errors",
        "ServiceError": "fanout.errors",
        "SetupError": "fanout.errors",
        "SilentProducerError": "fanout.errors",
        "SinkStatistics": "fanout.core.statistics",
        "SparkLostError": "fanout.errors",
        "Split": "fanout.core.events",
        "SplitFailedError": "fanout.errors",
        "SplitLostError": "fanout.errors",
        "SplitState": "fanout.core.statistics",
        "SplitStatistics": "fanout.core.statistics",
        "Statistics": "fanout.core.statistics",
        "StreamLending": "fanout.core.lending.stream_lending",
        "StreamStateError": "fanout.errors",
        "StreamTotals": "fanout.core.statistics",
        "SubscribeTimeoutError": "fanout.errors",
        "SubscriptionEndedError": "fanout.errors",
        "SubscriptionSilentError": "fanout.errors",
        "TableStatistics": "fanout.core.statistics",
        "Timestamp": "fanout.core.positions",
        "TransactionStatistics": "fanout.core.statistics",
        "UnconfirmedEndError": "fanout.errors",
        "UnwritableRecordError": "fanout.errors",
        "WriteTimeoutError": "fanout.errors",
        "WriterStatistics": "fanout.core.statistics",
        "followed": "fanout.landing.log.followed",
        "land": "fanout.landers.land",
        "open": "fanout.core.opening:open_stream",
        "resolve_start": "fanout.core.opening",
    },
)
