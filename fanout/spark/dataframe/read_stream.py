"""Read a source, given as a value, as a streaming DataFrame whose query lands it."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, Final

from fanout.core.error_text import text_of
from fanout.errors import OptionError, SetupError
from fanout.spark.session_checks import require_classic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.source import Source

_numbers: Final = itertools.count(1)


def read_stream(
    spark: SparkSession,
    source: Source,
    *,
    landing: str,
    landers: int | None = None,
    options: Mapping[str, str | int | float | bool] | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of a source, which its query lands by itself.

    While a query runs, one process on the driver's machine reads the source, and lands it as
    `fanout.land` does. Each query continues the landing exactly. Of two queries that land in one
    place at a time one ends with an error; more queries read it with `format("fanout")`.

    The source is sent to that process. So a `Cluster` with a secret takes a function as `security`,
    and credentials of AWS come from the environment, a profile or a role, not from a `session`.

    Args:
        spark: A classic session of pyspark 4; Spark Connect takes the source as options of
            `format("fanout")`.
        source: The source, for example a `KinesisSource`.
        landing: Where it is landed: a directory, or a URI such as `s3://lake/_landing/orders`.
        landers: Must be None: executors read for `foreach_batch(landing=OnExecutors(...))` only.
        options: More options of `format("fanout")` by their names, such as
            `{"reader": "sessions", "maxRecordsPerTrigger": 100_000, "keep": "7d"}`.

    Raises:
        OptionError: An option is unknown or malformed, or the source cannot be sent.
        SetupError: It is a session of Spark Connect, it is stopped, or pyspark is too old.
    """
    require_classic(spark)
    try:
        from fanout.spark.dataframe.data_source import LandingDataSource  # noqa: PLC0415 - needs pyspark 4
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise
        raise SetupError(
            "read_stream needs pyspark 4.0 or newer; use fanout.spark.foreach_batch, which needs "
            "3.5"
        ) from error
    if landers is not None:
        raise OptionError(
            f"landers={landers}: the source of a DataFrame is landed by one process; leave landers "
            f"out, or use foreach_batch with landing=OnExecutors(landers={landers})"
        )
    _check(source)
    name = f"fanout_{os.getpid()}_{next(_numbers)}"
    # Not found by its name, so Spark sends the class itself, with the source.
    kind = type(name, (LandingDataSource,), {"source": source, "name": classmethod(lambda _: name)})
    spark.dataSource.register(kind)
    given = {key: str(value) for key, value in (options or {}).items()}
    return spark.readStream.format(name).options(landing=landing, **given).load()


def _check(source: Source) -> None:
    """Check that a source can be sent, and holds no credentials.

    Raises:
        OptionError: It cannot.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - an optional extra

    dumps: Any = cloudpickle.dumps

    if getattr(source, "session", None) is not None:
        raise OptionError(
            "session holds credentials, which are not sent to the process that lands the source: "
            "leave session out, and give them by the environment, a profile or role_arn"
        )
    try:
        dumps(source)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"the source cannot be sent to the process that lands it: {text_of(error)}"
        ) from error
