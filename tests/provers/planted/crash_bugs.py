"""Mistakes that a crash campaign has to find, each with a kill that shows it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fanout.spark.sinks.kinesis.sink import KinesisSink
from fanout.spark.sinks.tables.delta_sink import DeltaSink
from fanout.spark.sinks.tables.iceberg_sink import IcebergSink
from fanout.spark.sinks.tables.jdbc_sink import JdbcSink
from fanout.spark.sinks.tables.jdbc_table import JdbcTable
from fanout.spark.sinks.tables.parquet_sink import ParquetSink
from fanout.spark.sinks.tables.postgres_sink import PostgresSink
from tests.provers.crash.moments import CrashMoment, Pipeline, Sink, Strike, StrikeKind
from tests.provers.planted.edits import Edit, constant, has, node, on, with_test, with_value
from tests.provers.planted.lander_bugs import UNGUARDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provers.planted.edits import Change

__all__ = ("CRASH_BUGS", "CrashBug")


class CrashBug(NamedTuple):
    """A mistake in the driver of a campaign's job.

    Args:
        change: What is changed in the library.
        sink: The sink that the job writes with.
        shown_by: The strike that shows it.
        counted: What the oracle counts then.
    """

    change: Change
    sink: Sink
    shown_by: Strike
    counted: str


def _at(moment: CrashMoment) -> Strike:
    return Strike(moment, StrikeKind.KILL_DRIVER, Pipeline.KINESIS)


def _expression(text: str) -> Callable[[Any], ast.expr]:
    return lambda _: ast.parse(text, mode="eval").body


def _before(text: str) -> Callable[[Any], list[ast.stmt]]:
    return lambda kept: [*ast.parse(text).body, kept]


def _method(name: str) -> Callable[[Any], bool]:
    return node(ast.Call, func=node(ast.Attribute, attr=name))


def _marked_first(write: ast.stmt) -> list[ast.stmt]:
    _APPENDING.take(write)
    files = "marker.getFileSystem(hadoop_configuration(spark))"
    return [*ast.parse(f"{files}.create(marker).close()").body, write]


_APPENDING: Final = on(node(ast.Constant, value="overwrite"), constant("append"))
_WRITTEN_ALREADY: Final = node(ast.If, test=has(_method("is_in")))
_IN_TRANSACTION: Final = node(ast.If, test=has(node(ast.Name, id="staging")))

CRASH_BUGS: Final[dict[str, CrashBug]] = {
    "a coordinator checks no position": CrashBug(
        UNGUARDED,
        Sink.KAFKA,
        Strike(CrashMoment.AFTER_TELLING, StrikeKind.KILL_LANDER, Pipeline.KINESIS_LANDERS),
        "duplicated",
    ),
    "files are added to what is left of a batch": CrashBug(
        (Edit(ParquetSink._write, _APPENDING),),
        Sink.PARQUET,
        _at(CrashMoment.BEFORE_MARKER),
        "duplicated",
    ),
    "a directory has a marker before its files": CrashBug(
        (
            Edit(
                ParquetSink._write,
                on(node(ast.Expr, value=has(_method("parquet"))), _marked_first),
            ),
        ),
        Sink.PARQUET,
        _at(CrashMoment.BEFORE_WRITE),
        "lost",
    ),
    "rows are taken over twice": CrashBug(
        (
            Edit(PostgresSink._write, on(_WRITTEN_ALREADY, with_test(constant(value=False)))),
            Edit(PostgresSink._take_over, on(_IN_TRANSACTION, with_test(_expression("staging")))),
        ),
        Sink.POSTGRES,
        _at(CrashMoment.AFTER_TABLE_COMMIT),
        "duplicated",
    ),
    "rows are taken over twice through JDBC": CrashBug(
        (
            Edit(
                JdbcSink._write,
                on(_WRITTEN_ALREADY, with_test(constant(value=False))),
            ),
            Edit(
                JdbcTable.store,
                on(
                    node(ast.If, test=node(ast.Name, id="changed")), with_test(constant(value=True))
                ),
            ),
        ),
        Sink.JDBC,
        _at(CrashMoment.AFTER_TABLE_COMMIT),
        "duplicated",
    ),
    "a batch counts as written before its rows are": CrashBug(
        (Edit(PostgresSink._take_over, on(_IN_TRANSACTION, _before("database.commit()"))),),
        Sink.POSTGRES,
        _at(CrashMoment.IN_TAKE_OVER),
        "lost",
    ),
    "a commit of Delta has no id of its batch": CrashBug(
        (
            Edit(
                DeltaSink._attempt,
                on(node(ast.Assign, value=node(ast.Dict)), with_value(_expression("{}"))),
            ),
        ),
        Sink.DELTA,
        _at(CrashMoment.AFTER_TABLE_COMMIT),
        "duplicated",
    ),
    "a snapshot of Iceberg is not looked for": CrashBug(
        (
            Edit(
                IcebergSink._attempt,
                on(_WRITTEN_ALREADY, with_test(constant(value=False))),
            ),
        ),
        Sink.ICEBERG,
        _at(CrashMoment.AFTER_TABLE_COMMIT),
        "duplicated",
    ),
    "a replay has other ids": CrashBug(
        (
            Edit(
                KinesisSink.write,
                on(_method("join"), _expression('f"{batch_id} {context.ownership.run}"')),
            ),
        ),
        Sink.KINESIS,
        _at(CrashMoment.AFTER_PUT),
        "duplicated",
    ),
}
