"""Test streaming jobs offline: embedded services, faults, a fast mode and virtual time.

The embedded Kinesis is `KinesisServer` in this process and `KinesisProcess` in one of its own;
`KinesisRules` are its figures, `KinesisStatistics` count what clients did, the faults go to
`inject`, and `encode_aggregate` makes records as the Kinesis Producer Library puts them.
`KafkaBroker` is Apache Kafka itself. `fast` lets fanout retry as fast as they allow. `simulate` and
`sweep` run asyncio code in virtual time, on a `SimLoop`. `fanout.testing.pytest_plugin` has the
fixtures.

Each name is loaded when it is first used. The services need the extra `fanout[testing]`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fanout.errors import SetupError

if TYPE_CHECKING:
    from fanout.testing.fast_mode import fast
    from fanout.testing.faults import (
        CorruptFrame,
        CutConnection,
        CutPoll,
        EmptyPoll,
        EndEarly,
        Fault,
        HalfAnEnd,
        IgnoreCall,
        IgnoreSubscribe,
        RaiseInStream,
        RefuseCall,
        RefuseSubscribe,
        RevokeKey,
        Stall,
        fault_from_json,
        fault_to_json,
    )
    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.kpl_format import encode_aggregate
    from fanout.testing.kinesis.process import KinesisProcess
    from fanout.testing.kinesis.rules import KinesisRules, KinesisStatistics
    from fanout.testing.kinesis.server import KinesisServer
    from fanout.testing.virtual_time import (
        Cancellation,
        DeadlockError,
        Fifo,
        LeakError,
        Moment,
        Priorities,
        Schedule,
        Shuffled,
        SimLoop,
        Trace,
        running_loop,
        simulate,
        sweep,
    )

__all__ = (
    "Cancellation",
    "CorruptFrame",
    "CutConnection",
    "CutPoll",
    "DeadlockError",
    "EmptyPoll",
    "EndEarly",
    "Fault",
    "Fifo",
    "HalfAnEnd",
    "IgnoreCall",
    "IgnoreSubscribe",
    "KafkaBroker",
    "KinesisProcess",
    "KinesisRules",
    "KinesisServer",
    "KinesisStatistics",
    "LeakError",
    "Moment",
    "Priorities",
    "RaiseInStream",
    "RefuseCall",
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

_MODULES = {
    "KafkaBroker": "kafka.broker",
    "KinesisProcess": "kinesis.process",
    "KinesisRules": "kinesis.rules",
    "KinesisServer": "kinesis.server",
    "KinesisStatistics": "kinesis.rules",
    "encode_aggregate": "kinesis.kpl_format",
    "fast": "fast_mode",
} | dict.fromkeys(
    (
        "Cancellation",
        "DeadlockError",
        "Fifo",
        "LeakError",
        "Moment",
        "Priorities",
        "Schedule",
        "Shuffled",
        "SimLoop",
        "Trace",
        "running_loop",
        "simulate",
        "sweep",
    ),
    "virtual_time",
)


def __getattr__(name: str) -> Any:
    """Load what a public name stands for; what is not named otherwise is a fault."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES.get(name, 'faults')}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("fanout"):
            raise
        missing = (error.name or "a library").partition(".")[0]
        raise SetupError(
            f"{missing} is not installed; install the extra: pip install 'fanout[testing]'"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
