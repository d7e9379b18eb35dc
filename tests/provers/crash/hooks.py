"""Let a process of the job come to the moments of a campaign: wrap the functions concerned.

Only in that process, and from outside: the library itself has no place where it would fail on
purpose.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanout.landing.entries import BATCHES, SEGMENTS
from tests.provers.crash.moments import CrashMoment, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provers.crash.control import Control

__all__ = ("install_in_driver", "install_in_worker")

# Whose batch runs, or recovery: what is called from there, also on an event loop, inherits it.
_pipeline: ContextVar[Pipeline | None] = ContextVar("pipeline", default=None)
# What the lander of this process reads: its threads inherit no context.
_lander_reads: list[Pipeline] = []


def install_in_driver(control: Control) -> None:
    """Wrap what the driver does for a batch.

    Args:
        control: Where strikes are taken from.
    """
    from fanout.kafka.transactions.stored_tokens import SINKS, SinkState  # noqa: PLC0415 - the same
    from fanout.kafka.transactions.transactions import Transactions  # noqa: PLC0415 - not for Python workers
    from fanout.landing.ledger import BatchLedger  # noqa: PLC0415 - the same
    from fanout.landing.local_storage import LocalStorage  # noqa: PLC0415 - the same
    from fanout.spark.batch_runner import BatchRunner  # noqa: PLC0415 - the same
    from fanout.spark.sink.kafka_sink import KafkaSink  # noqa: PLC0415 - the same

    reach = functools.partial(_reach, control)
    # Spark commits a batch when its function has returned, and then asks for the next one.
    _wrap(BatchRunner, "run", reach, (CrashMoment.AFTER_COMMIT, CrashMoment.BEFORE_COMMIT))
    _wrap(BatchRunner, "_handle", reach, (CrashMoment.BEFORE_HANDLER, CrashMoment.AFTER_HANDLER))
    _wrap(BatchLedger, "prune", reach, (CrashMoment.BEFORE_PRUNE, CrashMoment.AFTER_PRUNE))
    _wrap(
        LocalStorage,
        "publish",
        reach,
        (CrashMoment.BEFORE_SEGMENT, CrashMoment.AFTER_SEGMENT),
        SEGMENTS,
    )
    _wrap(
        LocalStorage, "create", reach, (CrashMoment.BEFORE_ENTRY, CrashMoment.AFTER_ENTRY), BATCHES
    )
    prune = (CrashMoment.BEFORE_TOKEN_PRUNE, CrashMoment.AFTER_TOKEN_PRUNE)
    _wrap(LocalStorage, "delete", reach, prune, SINKS)
    _wrap(SinkState, "record", reach, (CrashMoment.BEFORE_TOKEN, CrashMoment.AFTER_TOKEN))
    _wrap(
        SinkState,
        "record_committed",
        reach,
        (CrashMoment.BEFORE_OUTCOME, CrashMoment.AFTER_OUTCOME),
    )
    _wrap(Transactions, "begin", reach, (CrashMoment.BEFORE_BEGIN, CrashMoment.AFTER_BEGIN))
    _wrap(Transactions, "mark", reach, (CrashMoment.BEFORE_MARKER, CrashMoment.AFTER_MARKER))
    _wrap(Transactions, "commit", reach, (CrashMoment.BEFORE_END, CrashMoment.AFTER_END))
    _wrap(KafkaSink, "recover", reach, (CrashMoment.BEFORE_RECOVERY, CrashMoment.AFTER_RECOVERY))
    _know_pipeline(BatchRunner, "run", lambda runner, *_: runner._storage.location)
    _know_pipeline(KafkaSink, "recover", lambda _sink, context: context.storage.location)


def install_in_worker(control: Control) -> None:
    """Wrap what a task does in a Python worker.

    Args:
        control: Where strikes are taken from.
    """
    from fanout.kafka.writing.writer import KafkaWriter  # noqa: PLC0415 - not for the driver
    from fanout.landers.lander import Lander  # noqa: PLC0415 - the same
    from fanout.landers.task import LanderTask  # noqa: PLC0415 - the same
    from fanout.landing.local_storage import LocalStorage  # noqa: PLC0415 - the same

    reach = functools.partial(_reach, control)
    landing = (CrashMoment.BEFORE_LANDING, CrashMoment.AFTER_LANDING)
    _wrap(LocalStorage, "publish", reach, landing, SEGMENTS)
    _wrap(Lander, "_tell", reach, (None, CrashMoment.AFTER_TELLING))
    run = LanderTask.__call__

    def know_pipeline(task: LanderTask, lander: int, attempt: int) -> None:
        _lander_reads[:] = [Pipeline(Path(task.location).parent.name)]
        run(task, lander, attempt)

    setattr(LanderTask, "__call__", know_pipeline)  # noqa: B010 - mypy refuses the assignment
    _wrap(KafkaWriter, "write", reach, (CrashMoment.BEFORE_WRITE, None))
    _wrap(KafkaWriter, "flush", reach, (CrashMoment.BEFORE_FLUSH, CrashMoment.AFTER_FLUSH))


def _reach(control: Control, moment: CrashMoment | None) -> None:
    if moment is not None:
        control.reach(moment, _lander_reads[0] if _lander_reads else _pipeline.get())


def _know_pipeline(owner: Any, name: str, location: Callable[..., str]) -> None:
    """Let a method and all that it calls know their pipeline, by its checkpoint."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        token = _pipeline.set(Pipeline(Path(location(self, *arguments)).parent.name))
        try:
            return method(self, *arguments, **named)
        finally:
            _pipeline.reset(token)

    setattr(owner, name, wrapper)


def _wrap(
    owner: Any,
    name: str,
    reach: Callable[[CrashMoment | None], None],
    moments: tuple[CrashMoment | None, CrashMoment | None],
    directory: str | None = None,
) -> None:
    """Come to moments before and after each call of a method.

    Args:
        owner: The class.
        name: The method, or coroutine function.
        reach: What comes to a moment; None is none.
        moments: That before a call, and that after one that has not raised.
        directory: Only calls that name a file in it, where given.
    """
    method = getattr(owner, name)
    before, after = moments

    def concerned(arguments: tuple[Any, ...]) -> bool:
        names = (argument for argument in arguments if isinstance(argument, str))
        return directory is None or any(each.startswith(f"{directory}/") for each in names)

    @functools.wraps(method)
    def sync(self: Any, *arguments: Any, **named: Any) -> Any:
        ours = concerned(arguments)
        reach(before if ours else None)
        answer = method(self, *arguments, **named)
        reach(after if ours else None)
        return answer

    @functools.wraps(method)
    async def coroutine(self: Any, *arguments: Any, **named: Any) -> Any:
        reach(before)
        answer = await method(self, *arguments, **named)
        reach(after)
        return answer

    setattr(owner, name, coroutine if inspect.iscoroutinefunction(method) else sync)
