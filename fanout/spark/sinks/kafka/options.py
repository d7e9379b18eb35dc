"""The settings of a sink that the driver uses while it writes a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from fanout.core.statistics import Origin
from fanout.core.user_functions import check_function
from fanout.spark.query.current_batch import check_sink_name
from fanout.spark.sinks.sink_counts import SinkCounts

if TYPE_CHECKING:
    from fanout.core.statistics import SinkStatistics
    from fanout.kafka.writing.partitioner import Partitioner
    from fanout.kafka.writing.write_options import WriteOptions
    from fanout.spark.sinks.kafka.arrow_transform import ArrowTransform
    from fanout.spark.sinks.kafka.shuffle_frames import ShuffleFraming


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """The settings of a sink.

    Args:
        name: The sink's name in the checkpoint.
        options: The topic, the guarantee and the transactions.
        partitioner: The user's partitioner; None for Kafka's own.
        transform: Makes of Arrow records what is written; None where they are written as they are.
        framing: Encodes the rows as frames of a shuffle; None where they are written unchanged.
        counts: Counts what the sink writes.

    Raises:
        OptionError: If the name or the partitioner is malformed, or the security of the cluster
            cannot be sent to Spark's workers.
    """

    name: str
    options: WriteOptions
    partitioner: Partitioner | None = None
    transform: ArrowTransform | None = None
    framing: ShuffleFraming | None = None
    counts: SinkCounts = field(default_factory=SinkCounts, compare=False, repr=False)

    def __post_init__(self) -> None:
        _ = self.options.cluster.for_workers()  # checks its security
        check_sink_name(self.name)
        if self.partitioner is not None:
            kind = "a function of keys and a number"
            check_function("partitioner", self.partitioner, kind, arguments=2)

    def statistics(self) -> SinkStatistics:
        """Return what the sink has counted."""
        return self.counts.statistics(
            Origin("kafka", self.options.topic or ""),
            transactional=self.options.delivery_guarantee == "exactly_once",
        )

    def transactional_id(self, query_id: str) -> str:
        """Return the transactional id of the sink in a query."""
        return f"{self.options.transactional_id_prefix}-{query_id}-{self.name}"

    def marker_group(self, query_id: str) -> str:
        """Return the consumer group in which the sink of a query marks committed batches."""
        return f"{self.transactional_id(query_id)}-marker"
