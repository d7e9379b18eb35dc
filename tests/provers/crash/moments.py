"""The strikes of a campaign: at which step of a batch, and of which kind."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, final

import msgspec

__all__ = (
    "SUFFIX",
    "CrashMoment",
    "Pipeline",
    "Sink",
    "Strike",
    "StrikeKind",
    "input_of",
    "output_of",
)

SUFFIX: Final = b"!"
"""What the job's transform appends to each value."""


@final
class Sink(StrEnum):
    """The sink of the library that the job writes with."""

    KAFKA = "kafka"
    PARQUET = "parquet"
    POSTGRES = "postgres"
    JDBC = "jdbc"
    DELTA = "delta"
    ICEBERG = "iceberg"
    KINESIS = "kinesis"


@final
class Pipeline(StrEnum):
    """The source that the job reads, transforms and writes to a sink."""

    KINESIS = "kinesis"
    KAFKA = "kafka"
    KINESIS_LANDERS = "kinesis-landers"
    KAFKA_LANDERS = "kafka-landers"

    @property
    def by_landers(self) -> bool:
        """Whether landers on a cluster read it, and not the driver."""
        return self in {Pipeline.KINESIS_LANDERS, Pipeline.KAFKA_LANDERS}

    @property
    def of_kinesis(self) -> bool:
        """Whether its input is a stream of Kinesis, and not a topic."""
        return self in {Pipeline.KINESIS, Pipeline.KINESIS_LANDERS}


@final
class CrashMoment(StrEnum):
    """A step of a batch, in the order in which a batch takes them, or any moment."""

    BEFORE_LANDING = "before a lander publishes"
    AFTER_LANDING = "after a lander has published"
    AFTER_TELLING = "after a lander has told of it"
    BEFORE_SEGMENT = "before the segment is published"
    AFTER_SEGMENT = "after the segment is published"
    BEFORE_ENTRY = "before the ledger entry"
    AFTER_ENTRY = "after the ledger entry"
    BEFORE_PRUNE = "before old entries are pruned"
    AFTER_PRUNE = "after old entries are pruned"
    BEFORE_HANDLER = "before the handler"
    BEFORE_MERGE = "before the newest rows are merged"
    BEFORE_MERGE_COMMIT = "before the commit of the merged rows"
    AFTER_MERGE_COMMIT = "after the commit of the merged rows"
    AFTER_MERGE = "after the newest rows are merged"
    BEFORE_BEGIN = "before InitProducerId"
    AFTER_BEGIN = "after InitProducerId"
    BEFORE_WRITE = "before a task writes"
    BEFORE_FLUSH = "as a task flushes"
    BEFORE_PUT = "before PutRecords"
    AFTER_PUT = "after PutRecords"
    AFTER_FLUSH = "after a task has flushed"
    AFTER_WRITE = "after a task has written"
    AFTER_STAGING = "after all rows are staged"
    IN_TAKE_OVER = "in the transaction that takes them over"
    BEFORE_FILE = "before a file has its name"
    AFTER_FILE = "after a file has its name"
    BEFORE_TABLE_COMMIT = "before the commit of the rows"
    AFTER_TABLE_COMMIT = "after the commit of the rows"
    BEFORE_MARKER = "before the marker"
    AFTER_MARKER = "after the marker"
    BEFORE_TOKEN = "before the commit token"
    AFTER_TOKEN = "after the commit token"
    BEFORE_END = "before EndTxn"
    AFTER_END = "after EndTxn"
    BEFORE_OUTCOME = "before the outcome is stored"
    BEFORE_TOKEN_PRUNE = "before an old token is deleted"
    AFTER_TOKEN_PRUNE = "after an old token is deleted"
    AFTER_OUTCOME = "after the outcome is stored"
    AFTER_HANDLER = "after the handler"
    BEFORE_COMMIT = "before Spark's commit"
    AFTER_COMMIT = "after Spark's commit"
    BEFORE_RECOVERY = "before a new driver recovers"
    AFTER_RECOVERY = "after a new driver has recovered"
    RANDOM = "a random moment"


@final
class StrikeKind(StrEnum):
    """The kinds of faults that strike."""

    KILL_DRIVER = "driver killed"
    KILL_WORKER = "Python worker killed"
    KILL_LANDER = "lander killed"
    KILL_EXECUTOR = "executor killed"
    KILL_SPARK_WORKER = "Spark worker killed"
    KILL_BROKER = "broker killed"
    PAUSE_BROKER = "broker paused"
    MOVE_LEADERS = "leaders moved"
    KILL_KINESIS = "Kinesis killed"
    CUT_KINESIS = "Kinesis cut"


@final
class Strike(msgspec.Struct, frozen=True):
    """One fault at one step.

    Args:
        moment: When.
        kind: Its kind.
        pipeline: The pipeline of the step.
    """

    moment: CrashMoment
    kind: StrikeKind
    pipeline: Pipeline


def input_of(pipeline: Pipeline) -> str:
    """Return the stream or topic that a pipeline reads."""
    return f"{pipeline}-in"


def output_of(pipeline: Pipeline) -> str:
    """Return the topic that a pipeline writes."""
    return f"{pipeline}-out"
