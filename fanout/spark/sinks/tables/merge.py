"""Merge the rows of a batch into a table, again where another writer has changed it."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from fanout.core.backoff import Backoff, FullJitter
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_and_last_cause
from fanout.spark.sinks.tables.columns import in_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_RANK: Final = "fanout_rank"

# A commit of the other writer may take as long as one of ours.
_ATTEMPTS: Final = 30
_WAITS: Final = Backoff(base=0.2, cap=10.0)


def merge(
    rows: DataFrame,
    target: str,
    key: Sequence[str],
    latest_by: str,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Insert the newest row of each key, or update one of the table that is not newer.

    A null is a value of a key like any other. Columns that the rows lack stay as they are, or get
    what the table gives them. `settings` are of Spark for this statement alone; other queries share
    the session.
    """
    names = [in_spark(name) for name in rows.columns]
    assigned = ", ".join(f"t.{name} = s.{name}" for name in names)
    inserted = ", ".join(f"s.{name}" for name in names)
    spark, view = rows.sparkSession, f"fanout_batch_{uuid4().hex}"
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in map(in_spark, key))
    order = in_spark(latest_by)
    rows.createOrReplaceTempView(view)
    try:
        statement = (
            f"MERGE INTO {target} AS t USING {view} AS s ON {same} "  # noqa: S608 - quoted
            f"WHEN MATCHED AND (t.{order} IS NULL OR s.{order} >= t.{order}) THEN "
            f"UPDATE SET {assigned} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({inserted})"
        )
        _run(spark, statement, settings)
    finally:
        spark.catalog.dropTempView(view)


def _run(spark: SparkSession, statement: str, settings: Mapping[str, str]) -> None:
    """Run a statement, with settings in a copy of the session, which has its views, too."""
    if not settings:
        spark.sql(statement)
        return
    session: Any = spark._jsparkSession  # noqa: SLF001 - newSession() has no settings and views
    copy = session.cloneSession()
    for name, value in settings.items():
        copy.conf().set(name, value)
    copy.sql(statement)


@contextmanager
def newest_once(rows: DataFrame, key: Sequence[str], latest_by: str | None) -> Iterator[DataFrame]:
    """Compute the newest row of each key once, and keep them while the block runs.

    A statement that merges rows may read them twice, and is repeated where another writer commits
    before it does. Without `latest_by` the rows are yielded as they are: they are read once.
    """
    if latest_by is None:
        yield rows
        return
    computed = newest(rows, key, latest_by).persist()
    try:
        yield computed
    finally:
        computed.unpersist()


def newest(rows: DataFrame, key: Sequence[str], latest_by: str) -> DataFrame:
    """Return the row of each key with the greatest value of `latest_by`; of several, one."""
    newest_first = F.col(in_spark(latest_by)).desc_nulls_last()
    of_key = Window.partitionBy(*map(in_spark, key)).orderBy(newest_first)
    ranked = rows.withColumn(_RANK, F.row_number().over(of_key))
    return ranked.where(f"{_RANK} = 1").drop(_RANK)


def in_attempts(
    attempt: Callable[[], object], is_conflict: Callable[[BaseException], bool]
) -> None:
    """Call a function, and again where another writer has changed the table meanwhile.

    `attempt` looks whether the batch is in the table as it is now, and writes it if not.
    `is_conflict` says whether an error of Java is such a change.
    """
    attempts = Retrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=FullJitter(_WAITS, Random()),  # noqa: S311 - jitter, no secret
        retry=retry_if_exception(
            lambda error: isinstance(error, JAVA_ERRORS) and is_conflict(error)
        ),
        before_sleep=_tell,
        reraise=True,
    )
    attempts(attempt)


def _tell(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    says = "" if error is None else first_and_last_cause(error)
    log.warning("another writer has changed the table, so the batch is tried again: %s", says)
