"""Let a process of the job come to the moments of a campaign: wrap the functions concerned.

Only in that process, and from outside: the library itself has no place where it would fail on
purpose.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fanout.landing.log.entries import BATCHES
from fanout.landing.segments.segments import SEGMENTS
from tests.provers.crash.moments import CrashMoment, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.provers.crash.control import Control

    _Reach: TypeAlias = Callable[[CrashMoment | None], None]

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
    from fanout.kafka.transactions.transactions import Transactions  # noqa: PLC0415 - not for Python workers
    from fanout.landing.log.ledger import BatchLedger  # noqa: PLC0415 - the same
    from fanout.landing.storage.local_storage import LocalStorage  # noqa: PLC0415 - the same
    from fanout.spark.query.batch_runner import BatchRunner  # noqa: PLC0415 - the same
    from fanout.spark.sinks.kafka.kafka_sink import KafkaSink  # noqa: PLC0415 - the same
    from fanout.spark.sinks.kafka.stored_tokens import SINKS, SinkState  # noqa: PLC0415 - the same

    reach = functools.partial(_reach, control)
    # Spark commits a batch when its function has returned, and then asks for the next one.
    _wrap(BatchRunner, "run", reach, (CrashMoment.AFTER_COMMIT, CrashMoment.BEFORE_COMMIT))
    _wrap(BatchRunner, "_handle", reach, (CrashMoment.BEFORE_HANDLER, CrashMoment.AFTER_HANDLER))
    _wrap(BatchLedger, "prune", reach, (CrashMoment.BEFORE_PRUNE, CrashMoment.AFTER_PRUNE))
    segment = (CrashMoment.BEFORE_SEGMENT, CrashMoment.AFTER_SEGMENT)
    _wrap(LocalStorage, "publish", reach, segment, _names_a_file_in(SEGMENTS))
    entry = (CrashMoment.BEFORE_ENTRY, CrashMoment.AFTER_ENTRY)
    _wrap(LocalStorage, "create", reach, entry, _names_a_file_in(BATCHES))
    prune = (CrashMoment.BEFORE_TOKEN_PRUNE, CrashMoment.AFTER_TOKEN_PRUNE)
    _wrap(LocalStorage, "delete", reach, prune, _names_a_file_in(SINKS))
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
    _wrap_tables(reach)
    _wrap_jdbc(reach)
    _know_pipeline(BatchRunner, "run", lambda runner, *_: runner._storage.location)
    _know_pipeline(KafkaSink, "recover", lambda _sink, context: context.storage.location)


def _wrap_tables(reach: _Reach) -> None:
    """Wrap what sinks of tables do in Python; `watched_files` has what they do in the JVM."""
    from fanout.spark import DeltaSink, IcebergSink, JdbcSink, PostgresSink  # noqa: PLC0415 - not for Python workers
    from fanout.spark.sinks.tables import postgres_sink  # noqa: PLC0415 - the same
    from fanout.spark.sinks.tables.postgres_connection import transaction  # noqa: PLC0415 - the same
    from fanout.spark.sinks.tables.postgres_table import TargetTable  # noqa: PLC0415 - the same

    for sink in (DeltaSink, IcebergSink, JdbcSink, PostgresSink):
        _wrap(sink, "_write", reach, (CrashMoment.BEFORE_MERGE, CrashMoment.AFTER_MERGE), _merges)
    _wrap(
        PostgresSink,
        "_copy",
        reach,
        (None, CrashMoment.AFTER_STAGING),
        lambda sink, *_: not _merges(sink),
    )
    _wrap(
        TargetTable,
        "insert",
        reach,
        (CrashMoment.IN_TAKE_OVER, None),
        lambda _, *arguments: arguments[-1] is None,
    )
    take_over = PostgresSink._take_over
    taken_over: list[CrashMoment] = []

    def watched_take_over(sink: PostgresSink, *arguments: Any) -> None:
        take_over(sink, *arguments)
        before, after = _COMMITS[_merges(sink)]
        reach(before)
        taken_over.append(after)

    @contextmanager
    def watched_transaction(dsn: Any) -> Iterator[Any]:
        taken_over.clear()  # of a transaction that has failed
        with transaction(dsn) as database:
            yield database
        while taken_over:  # what follows the commit
            reach(taken_over.pop())

    setattr(PostgresSink, "_take_over", watched_take_over)  # noqa: B010 - mypy refuses the assignment
    setattr(postgres_sink, "transaction", watched_transaction)  # noqa: B010 - the same


def _wrap_jdbc(reach: _Reach) -> None:
    """Wrap the steps of a batch over JDBC; the sink commits as it leaves a block."""
    from fanout.spark import JdbcSink  # noqa: PLC0415 - not for Python workers
    from fanout.spark.sinks.tables.jdbc_table import JdbcTable  # noqa: PLC0415 - the same

    staging = (None, CrashMoment.AFTER_STAGING)
    _wrap(JdbcSink, "_stage", reach, staging, lambda sink, *_: not _merges(sink))
    take_over, drop_left = JdbcTable.take_over, JdbcTable.drop_left
    taken_over: list[CrashMoment] = []

    def watched_take_over(table: JdbcTable, *arguments: Any) -> int:
        merges = arguments[-1] is not None
        if not merges:
            reach(CrashMoment.IN_TAKE_OVER)
        rows = take_over(table, *arguments)
        before, after = _COMMITS[merges]
        reach(before)
        taken_over.append(after)
        return rows

    def watched_drop_left(table: JdbcTable, prefix: str) -> None:
        while taken_over:  # what follows the commit
            reach(taken_over.pop())
        drop_left(table, prefix)

    setattr(JdbcTable, "take_over", watched_take_over)  # noqa: B010 - mypy refuses the assignment
    setattr(JdbcTable, "drop_left", watched_drop_left)  # noqa: B010 - the same


# The moments of a transaction that does not merge, and of one that does.
_COMMITS: Final = (
    (CrashMoment.BEFORE_TABLE_COMMIT, CrashMoment.AFTER_TABLE_COMMIT),
    (CrashMoment.BEFORE_MERGE_COMMIT, CrashMoment.AFTER_MERGE_COMMIT),
)


def _merges(sink: Any, *_: Any) -> bool:
    return sink.latest_by is not None


def install_in_worker(control: Control) -> None:
    """Wrap what a task does in a Python worker.

    Args:
        control: Where strikes are taken from.
    """
    from fanout.kafka.writing.writer import KafkaWriter  # noqa: PLC0415 - not for the driver
    from fanout.kinesis.aws.client import _AioKinesisClient  # noqa: PLC0415 - the same
    from fanout.kinesis.writer import KinesisWriter  # noqa: PLC0415 - the same
    from fanout.kinesis.writing.sender import PutSender  # noqa: PLC0415 - the same
    from fanout.landers.lander import Lander  # noqa: PLC0415 - the same
    from fanout.landers.task import LanderTask  # noqa: PLC0415 - the same
    from fanout.landing.storage.local_storage import LocalStorage  # noqa: PLC0415 - the same
    from fanout.spark.sinks.tables.postgres_connection import CopyTask  # noqa: PLC0415 - the same

    reach = functools.partial(_reach, control)
    landing = (CrashMoment.BEFORE_LANDING, CrashMoment.AFTER_LANDING)
    _wrap(LocalStorage, "publish", reach, landing, _names_a_file_in(SEGMENTS))
    _wrap(Lander, "_tell", reach, (None, CrashMoment.AFTER_TELLING))
    run = LanderTask.__call__

    def know_pipeline(task: LanderTask, lander: int, attempt: int) -> None:
        _lander_reads[:] = [Pipeline(Path(task.location).parent.name)]
        run(task, lander, attempt)

    setattr(LanderTask, "__call__", know_pipeline)  # noqa: B010 - mypy refuses the assignment
    flush = (CrashMoment.BEFORE_FLUSH, CrashMoment.AFTER_FLUSH)
    _wrap(KafkaWriter, "write", reach, (CrashMoment.BEFORE_WRITE, None))
    _wrap(KafkaWriter, "flush", reach, flush)
    _wrap(KinesisWriter, "write", reach, (CrashMoment.BEFORE_WRITE, None))
    put = (CrashMoment.BEFORE_PUT, CrashMoment.AFTER_PUT)
    _wrap(_AioKinesisClient, "put_records", reach, put)
    _wrap(PutSender, "flush", reach, flush)
    _wrap(CopyTask, "_copy", reach, (CrashMoment.BEFORE_WRITE, CrashMoment.AFTER_WRITE))


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


def _names_a_file_in(directory: str) -> Callable[..., bool]:
    def names(_: Any, *arguments: Any) -> bool:
        texts = (argument for argument in arguments if isinstance(argument, str))
        return any(each.startswith(f"{directory}/") for each in texts)

    return names


def _wrap(
    owner: Any,
    name: str,
    reach: _Reach,
    moments: tuple[CrashMoment | None, CrashMoment | None],
    concerned: Callable[..., bool] = lambda *_: True,
) -> None:
    """Come to moments before and after each call of a method.

    Args:
        owner: The class.
        name: The method, or coroutine function.
        reach: What comes to a moment; None is none.
        moments: That before a call, and that after one that has not raised.
        concerned: Says of the arguments of a call whether it is one of these.
    """
    method = getattr(owner, name)

    def of(arguments: tuple[Any, ...]) -> tuple[CrashMoment | None, CrashMoment | None]:
        return moments if concerned(*arguments) else (None, None)

    @functools.wraps(method)
    def sync(*arguments: Any, **named: Any) -> Any:
        before, after = of(arguments)
        reach(before)
        answer = method(*arguments, **named)
        reach(after)
        return answer

    @functools.wraps(method)
    async def coroutine(*arguments: Any, **named: Any) -> Any:
        before, after = of(arguments)
        reach(before)
        answer = await method(*arguments, **named)
        reach(after)
        return answer

    setattr(owner, name, coroutine if inspect.iscoroutinefunction(method) else sync)
