"""The options of the demo, the check of its requirements, and its error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Final, final

from fanout.core.sentence import Option, Sentence
from fanout.errors import FanOutError, OptionError, SetupError

STREAM: Final = "orders"
"""The name of the stream or topic."""

QUEUE: Final = "fanout-demo"
"""The name of the queue."""

LENT_SECONDS: Final = 5
"""How long a record that is lent and not acknowledged is kept from other readers."""

# Fewer would be read before the faults among them can happen.
MIN_RECORDS: Final = 1_000
# The proof holds every record in memory.
MAX_RECORDS: Final = 1_000_000
MAX_SHARDS: Final = 50
# Each holds a core, and a Python process.
MAX_LANDERS: Final = 8
# Of a cluster of Kafka; each takes some 200 MB.
MAX_NODES: Final = 5
# With fewer, a shard that is created late in a run could get none.
_MIN_RECORDS_PER_SHARD = 100


@final
class ServiceName(StrEnum):
    """A service that the demo can run on."""

    KINESIS = "kinesis"
    KAFKA = "kafka"
    KAFKA_SHARE = "kafka-share"
    KINESIS_QUEUE = "kinesis-queue"

    @property
    def lender(self) -> str:
        """What lends records, in no order, until they are acknowledged; empty if nothing does."""
        return {"kafka-share": "a share group", "kinesis-queue": "a queue"}.get(self, "")


@final
class StorageName(StrEnum):
    """The place of the checkpoints and the output of the demo."""

    DISK = "disk"
    S3 = "s3"


@final
class DemoFailedError(FanOutError):
    """The demo could not be completed; this is no result about the records.

    An error that is not explained does not name its cause; the driver's log may.
    """

    def __init__(self, sentence: str, *, explained: bool = True) -> None:
        super().__init__(sentence)
        self.explained = explained


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the demo; wrong ones raise an OptionError."""

    source: ServiceName = ServiceName.KINESIS
    records: int = 50_000
    shards: int = 4  # or partitions, at the start
    seed: int = 89  # some of its faults are before the kill, and some after the restart
    kill: bool = False  # the Spark driver in the middle of a batch; with a shuffle, both in turn
    shuffle: bool = False  # by key over the partitions of a topic, which a second query reads
    storage: StorageName = StorageName.DISK  # of the checkpoints and the output
    landers: int = 0  # that read, in Python workers of Spark; 0 for the driver itself
    dataframe: bool = False  # whether the query is one of a streaming DataFrame
    nodes: int = 1  # of the cluster of Kafka; with several, their faults are among the actions

    def __post_init__(self) -> None:
        if not MIN_RECORDS <= self.records <= MAX_RECORDS:
            raise OptionError(
                Option("records", self.records),
                f" must be between {MIN_RECORDS:,} and {MAX_RECORDS:,}",
            )
        if not 1 <= self.shards <= MAX_SHARDS:
            raise OptionError(Option("shards", self.shards), f" must be between 1 and {MAX_SHARDS}")
        if self.shuffle and self.source is not ServiceName.KAFKA:
            raise OptionError(
                Sentence.of("{shuffle} needs a topic of Kafka; pass {source='kafka'}")
            )
        if self.storage is StorageName.S3 and (self.shuffle or self.source.lender):
            raise OptionError(
                Sentence.of(
                    "{storage='s3'} is for {source='kinesis'} and {source='kafka'} without a "
                    "shuffle"
                )
            )
        self._check_landers()
        self._check_dataframe()
        self._check_nodes()
        least = _MIN_RECORDS_PER_SHARD * self.shards
        if self.records < least:
            raise OptionError(
                Option("records", self.records),
                f" must be at least {least:,} for {self.shards} shards",
            )

    def _check_landers(self) -> None:
        landers = Option("landers", self.landers)
        if not 0 <= self.landers <= MAX_LANDERS:
            raise OptionError(landers, f" must be between 0 and {MAX_LANDERS}")
        if not self.landers:
            return
        if self.source.lender:
            raise OptionError(
                landers,
                Sentence.of(
                    f" cannot read {{source='{self.source}'}}: {self.source.lender} locks "
                    f"records for one stream"
                ),
            )
        if self.shuffle:
            raise OptionError(
                landers, Sentence.of(" do not read the shuffle of the demo; leave {shuffle} out")
            )
        if self.storage is not StorageName.DISK:
            raise OptionError(landers, Sentence.of(" need {storage='disk'}"))

    def _check_dataframe(self) -> None:
        if not self.dataframe:
            return
        if self.landers:
            raise OptionError(
                Sentence.of(
                    "{dataframe=True} of the demo lands in one process of the query; leave "
                    "{landers} out"
                )
            )
        if self.source.lender:
            raise OptionError(
                Sentence.of(
                    f"{{dataframe=True}} cannot read {{source='{self.source}'}}: "
                    f"{self.source.lender} cannot be landed"
                )
            )
        if self.shuffle:
            raise OptionError(
                Sentence.of(
                    "{dataframe=True} does not read the shuffle of the demo; leave {shuffle} out"
                )
            )
        if self.storage is not StorageName.DISK:
            raise OptionError(Sentence.of("{dataframe=True} needs {storage='disk'}"))

    def _check_nodes(self) -> None:
        nodes = Option("nodes", self.nodes)
        if not 1 <= self.nodes <= MAX_NODES or self.nodes == 2:  # noqa: PLR2004 - no majority
            raise OptionError(nodes, f" must be 1, or 3 to {MAX_NODES}, so that one may fail")
        if self.nodes > 1 and self.source not in {ServiceName.KAFKA, ServiceName.KAFKA_SHARE}:
            raise OptionError(
                nodes, Sentence.of(" are those of a cluster of Kafka; pass {source='kafka'}")
            )


def check_environment(
    source: ServiceName, storage: StorageName = StorageName.DISK, *, dataframe: bool = False
) -> None:
    """Check that all that the demo starts is installed.

    Raises:
        SetupError: If an extra is missing, pyspark is too old, or there is no Java for Spark.
    """
    needed = {"pyspark": "spark", "aiokafka": "kafka", "confluent_kafka": "testing"}
    if source in {ServiceName.KINESIS, ServiceName.KINESIS_QUEUE}:
        needed = {"pyspark": "spark", "aioboto3": "kinesis", "moto": "testing"}
    if storage is StorageName.S3:
        needed["moto"] = "testing"
    missing = {extra for module, extra in needed.items() if find_spec(module) is None}
    if missing:
        extras = ",".join(sorted(missing))
        raise SetupError(
            f"the demo needs more extras of fanout: pip install 'fanout-streams[{extras}]'"
        )
    if dataframe and find_spec("pyspark.sql.datasource") is None:
        raise SetupError(
            Sentence.of(
                "{dataframe=True} needs pyspark 4.0 or newer, and an older one is installed; "
                "leave {dataframe} out"
            )
        )
    # It imports pyspark, so it comes after the check.
    from fanout.spark.hadoop.session_checks import require_java  # noqa: PLC0415

    require_java()
