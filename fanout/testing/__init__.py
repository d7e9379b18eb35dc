"""Test streaming jobs offline: embedded services, faults, a fast mode and virtual time.

The embedded Kinesis is `KinesisServer` in this process and `KinesisProcess` in one of its own;
`KinesisRules` are its figures, `KinesisStatistics` count what clients did, the faults go to
`inject`, and `encode_aggregate` makes records as the Kinesis Producer Library puts them.
`KafkaBroker` is Apache Kafka itself, `KafkaCluster` several nodes of it. `fast` lets fanout retry
as fast as they allow. `simulate` and `sweep` run asyncio code in virtual time, on a `SimLoop`.
`fanout.testing.pytest_plugin` has the fixtures.

Each name is loaded when it is first used. The services need the extra `testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.kinesis.writing.kpl_format import encode_aggregate
    from fanout.testing.fast_mode import fast
    from fanout.testing.faults import (
        CorruptFrame,
        CutConnection,
        CutPoll,
        CutPut,
        EmptyPoll,
        EndEarly,
        Fault,
        GoAway,
        GoAwayAtCall,
        HalfAnEnd,
        IgnoreCall,
        IgnoreSubscribe,
        RaiseInStream,
        RefuseCall,
        RefuseRecords,
        RefuseSubscribe,
        RevokeKey,
        Stall,
        fault_from_json,
        fault_to_json,
    )
    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kafka.cluster import KafkaCluster
    from fanout.testing.kinesis.process import KinesisProcess
    from fanout.testing.kinesis.rules import KinesisRules, KinesisStatistics
    from fanout.testing.kinesis.server import KinesisServer
    from fanout.testing.virtual_time.cancellation import Cancellation, Moment, sweep
    from fanout.testing.virtual_time.loop import (
        DeadlockError,
        LeakError,
        SimLoop,
        running_loop,
        simulate,
    )
    from fanout.testing.virtual_time.schedule import Fifo, Priorities, Schedule, Shuffled
    from fanout.testing.virtual_time.trace import Trace

__all__ = (
    "Cancellation",
    "CorruptFrame",
    "CutConnection",
    "CutPoll",
    "CutPut",
    "DeadlockError",
    "EmptyPoll",
    "EndEarly",
    "Fault",
    "Fifo",
    "GoAway",
    "GoAwayAtCall",
    "HalfAnEnd",
    "IgnoreCall",
    "IgnoreSubscribe",
    "KafkaBroker",
    "KafkaCluster",
    "KinesisProcess",
    "KinesisRules",
    "KinesisServer",
    "KinesisStatistics",
    "LeakError",
    "Moment",
    "Priorities",
    "RaiseInStream",
    "RefuseCall",
    "RefuseRecords",
    "RefuseSubscribe",
    "RevokeKey",
    "Schedule",
    "Shuffled",
    "SimLoop",
    "Stall",
    "Trace",
    "encode_aggregate",
    "fast",
    "fault_from_json",
    "fault_to_json",
    "running_loop",
    "simulate",
    "sweep",
)

_FAULTS = (
    "CorruptFrame",
    "CutConnection",
    "CutPoll",
    "CutPut",
    "EmptyPoll",
    "EndEarly",
    "Fault",
    "GoAway",
    "GoAwayAtCall",
    "HalfAnEnd",
    "IgnoreCall",
    "IgnoreSubscribe",
    "RaiseInStream",
    "RefuseCall",
    "RefuseRecords",
    "RefuseSubscribe",
    "RevokeKey",
    "Stall",
    "fault_from_json",
    "fault_to_json",
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Cancellation": "fanout.testing.virtual_time.cancellation",
        "DeadlockError": "fanout.testing.virtual_time.loop",
        "Fifo": "fanout.testing.virtual_time.schedule",
        "KafkaBroker": "fanout.testing.kafka.broker",
        "KafkaCluster": "fanout.testing.kafka.cluster",
        "KinesisProcess": "fanout.testing.kinesis.process",
        "KinesisRules": "fanout.testing.kinesis.rules",
        "KinesisServer": "fanout.testing.kinesis.server",
        "KinesisStatistics": "fanout.testing.kinesis.rules",
        "LeakError": "fanout.testing.virtual_time.loop",
        "Moment": "fanout.testing.virtual_time.cancellation",
        "Priorities": "fanout.testing.virtual_time.schedule",
        "Schedule": "fanout.testing.virtual_time.schedule",
        "Shuffled": "fanout.testing.virtual_time.schedule",
        "SimLoop": "fanout.testing.virtual_time.loop",
        "Trace": "fanout.testing.virtual_time.trace",
        "encode_aggregate": "fanout.kinesis.writing.kpl_format",
        "fast": "fanout.testing.fast_mode",
        "running_loop": "fanout.testing.virtual_time.loop",
        "simulate": "fanout.testing.virtual_time.loop",
        "sweep": "fanout.testing.virtual_time.cancellation",
        **dict.fromkeys(_FAULTS, "fanout.testing.faults"),
    },
)
