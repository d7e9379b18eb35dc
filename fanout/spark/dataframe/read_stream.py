"""Read a source, given as a value, as a streaming DataFrame whose query lands it."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fanout.core.error_text import text_of
from fanout.core.membership import refuse_group
from fanout.core.option_checks import check_source, location_text
from fanout.errors import OptionError, SetupError
from fanout.spark.dataframe.driver_landings import RemoteLanding, of_this_process
from fanout.spark.dataframe.source_options import LandedSource
from fanout.spark.hadoop.session_checks import require_classic
from fanout.spark.landers.stream import OnExecutors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.source import Source


def read_stream(
    spark: SparkSession,
    source: Source,
    *,
    landing: str | PathLike[str],
    landers: int | None = None,
    control_port: int = 0,
    options: Mapping[str, str | int | float | bool] | None = None,
    group: None = None,
) -> DataFrame:
    """Return a streaming DataFrame of a source, which its query lands by itself.

    While a query runs, one process on the driver's machine reads the source, and lands it as
    `fanout.land` does; or landers on Spark's executors do, which begin and end with the query. Each
    query continues the landing exactly, with landers or without. Of two queries that land in one
    place at a time one ends with an error; more queries read it with `format("fanout")`.

    The source is sent to that process. So a `Cluster` with a secret takes a function as `security`,
    and credentials of AWS come from the environment, a profile or a role, not from a `session`.

    Args:
        spark: A classic session of pyspark 4; Spark Connect takes the source as options of
            `format("fanout")`.
        source: The source, for example a `KinesisSource`.
        landing: Where it is landed: a directory, or a URI such as `s3://lake/_landing/orders`.
        landers: How many landers read on Spark's executors, each holding a core as long as the
            query runs; Spark needs more cores than that. None for one process beside the driver.
        control_port: The port of the driver to which landers connect; 0 for any that is free.
        options: More options of `format("fanout")` by their names, such as
            `{"reader": "sessions", "maxRecordsPerTrigger": 100_000, "keep": "7d"}`.
        group: A landing joins no group: anything but None is refused.

    Raises:
        OptionError: An option is unknown or malformed, the source is a share group, or it cannot be
            sent.
        SetupError: It is a session of Spark Connect, it is stopped, or pyspark is too old.
    """
    refuse_group(
        group,
        "a landing has the positions of all splits; leave it out, and share the work among landers "
        "on Spark's executors by landers=8",
    )
    check_source(source)
    landing = location_text("landing", landing)
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
    pickled = _check(source)
    if landers is None and control_port:
        raise OptionError(
            f"control_port={control_port} is for landers: pass landers, or leave it out"
        )
    given = {key: str(value) for key, value in (options or {}).items()}
    if any(key.lower() == "landing" for key in given):
        raise OptionError("landing is an argument of read_stream; leave it out of options")
    landed = LandedSource.parse({**given, "landing": landing}, source)
    assert landed is not None, "there is a source"
    driver = None
    if landers is not None:
        storage = landed.landing.storage or None
        executors = OnExecutors(landers=landers, control_port=control_port, storage_options=storage)
        driver = of_this_process().add(
            RemoteLanding(spark, source, landed.landing, landers=executors)
        )
    # Spark keeps each name for as long as the session lives: an equal source gets the same one.
    digest = sha256(pickled + repr(driver).encode()).hexdigest()[:16]
    name = f"fanout_{os.getpid()}_{digest}"
    # Not found by its name, so Spark sends the class itself, with the source.
    members = {"source": source, "driver": driver, "name": classmethod(lambda _: name)}
    spark.dataSource.register(type(name, (LandingDataSource,), members))
    return spark.readStream.format(name).options(landing=landing, **given).load()


def _check(source: Source) -> bytes:
    """Check that a source can be landed and sent, and holds no credentials; return what is sent."""
    if type(source).__module__.startswith("fanout.kafka.share."):
        raise OptionError(
            "a share group cannot be landed, as a landing continues after positions, and a group "
            "has none: read its topics with a KafkaSource, or the group with foreach_batch"
        )
    from pyspark import cloudpickle  # noqa: PLC0415 - an optional extra

    dumps: Any = cloudpickle.dumps

    if getattr(source, "session", None) is not None:
        raise OptionError(
            "session holds credentials, which are not sent to the process that lands the source: "
            "leave session out, and give them by the environment, a profile or role_arn"
        )
    try:
        pickled: bytes = dumps(source)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"the source cannot be sent to the process that lands it: {text_of(error)}"
        ) from error
    return pickled
