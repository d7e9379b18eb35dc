"""Amazon Kinesis Data Streams through enhanced fan-out, or by polling.

Needs the extra `kinesis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.core.findings import Finding
    from fanout.kinesis.deduplication import read_deduplication_ids
    from fanout.kinesis.doctor.diagnose import diagnose
    from fanout.kinesis.iam import iam_policy
    from fanout.kinesis.leases.group import LeaseTable
    from fanout.kinesis.queue.source import KinesisQueueSource
    from fanout.kinesis.source import KinesisSource
    from fanout.kinesis.writer import KinesisWriter, open_writer

__all__ = (
    "Finding",
    "KinesisQueueSource",
    "KinesisSource",
    "KinesisWriter",
    "LeaseTable",
    "diagnose",
    "iam_policy",
    "open_writer",
    "read_deduplication_ids",
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Finding": "fanout.core.findings",
        "KinesisQueueSource": "fanout.kinesis.queue.source",
        "KinesisSource": "fanout.kinesis.source",
        "KinesisWriter": "fanout.kinesis.writer",
        "LeaseTable": "fanout.kinesis.leases.group",
        "diagnose": "fanout.kinesis.doctor.diagnose",
        "iam_policy": "fanout.kinesis.iam",
        "open_writer": "fanout.kinesis.writer",
        "read_deduplication_ids": "fanout.kinesis.deduplication",
    },
)
