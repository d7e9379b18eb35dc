"""Counters of what writes to a service, as frozen snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from fanout.core.statistics import Origin


@final
@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """What became of the transactions of a writer or a sink.

    Those that are neither committed nor aborted are open, or their end is not known.

    Args:
        begun: Transactions that were begun.
        committed: Transactions that were committed.
        aborted: Transactions that were aborted, here or by the service.
    """

    begun: int = 0
    committed: int = 0
    aborted: int = 0


@final
@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A writer's counters since it was opened.

    Args:
        records: Records that the service has confirmed; those of aborted transactions included.
        bytes: Their bytes: as they were sent to Kafka, and with their partition keys for Kinesis.
        requests: Requests with records that were sent.
        retries: Records that were sent again, each time.
        throttled: Answers in which the service says that it slows the writer down.
        waiting_bytes: Bytes of the records that are not confirmed.
        transactions: The transactions; None for a writer without them.
        origin: Where the records go; no destination where each record names its topic.
    """

    records: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    throttled: int = 0
    waiting_bytes: int = 0
    transactions: TransactionStatistics | None = None
    origin: Origin = field(default_factory=Origin)


@final
@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """A sink's counters since it was made, of all queries that it writes for in this process.

    Args:
        batches: Batches that the sink has written, without those that an earlier run has written.
        records: The records of these batches.
        bytes: Their bytes: as they were sent to Kafka, and with their partition keys for Kinesis.
        transactions: The transactions; None for a sink without them.
        origin: Where the records go; no destination where each record names its topic.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    transactions: TransactionStatistics | None = None
    origin: Origin = field(default_factory=Origin)
