"""A driver that waits to be killed: queries on lent records, each held at another moment.

Its arguments: the address of the broker, or the URL of an embedded Kinesis, and the directory of
the checkpoints. Each moment names the topic and the group, or the stream and the queue, of its
query, and the directory of its checkpoint.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3

from fanout.kafka import KafkaShareSource, Security
from fanout.kafka.cluster import Cluster
from fanout.kinesis import KinesisQueueSource
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.log.pending import PendingSegments
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark import foreach_batch
from fanout.spark.query.query_stream import PendingQueue
from tests.spark.doomed_driver import small_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOMENTS = (
    "share-before-segment",
    "share-before-accept",
    "share-after-accept",
    "share-in-handler",
)

held = threading.Semaphore(0)
holding: set[str] = set()


def share(address: str, topic: str, **options: Any) -> KafkaShareSource:
    """Read a topic by a group of its own."""
    settings = {
        "share.auto.offset.reset": "earliest",
        # So short that a test can wait for it, so long that a busy machine is in time.
        "share.record.lock.duration.ms": "3000",
        "share.delivery.count.limit": "10",
        # A member that was killed keeps its partitions for so long.
        "share.session.timeout.ms": "3000",
    }
    return KafkaShareSource(
        cluster=Cluster(address, security=Security(protocol="PLAINTEXT")),
        topics=topic,
        group_id=topic,
        group_settings=settings,
        **options,
    )


def queue_of(address: str, name: str, **options: Any) -> KinesisQueueSource:
    """Read a stream by a queue of its name."""
    return KinesisQueueSource(
        stream=name,
        queue=name,
        endpoint_url=address,
        region="us-east-1",
        session=aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"),
        # So short that a test can wait for it, so long that a busy machine is in time.
        visibility_timeout=8,
        **options,
    )


def lent(address: str, name: str) -> KafkaShareSource | KinesisQueueSource:
    """Read what has a name, from a broker or from a URL."""
    if address.startswith("http"):
        return queue_of(address, name)
    return share(address, name, consumers=2)


def hold(storage: Any, moment: str) -> None:
    """Wait for the end, if it is the moment of this query."""
    if Path(storage.location).parent.name == moment:
        if moment not in holding:
            holding.add(moment)
            held.release()
        threading.Event().wait()


def install() -> None:
    """Let queries come to their moments, from outside."""
    publish, keep, write = LocalStorage.publish, PendingSegments.keep, BatchLedger.write
    acknowledge = PendingQueue._keep

    def publish_or_hold(self: LocalStorage, *arguments: Any) -> None:
        hold(self, "share-before-segment")
        publish(self, *arguments)

    def keep_and_hold(self: PendingSegments, *arguments: Any) -> Any:
        kept = keep(self, *arguments)
        hold(self._storage, "share-before-accept")
        return kept

    async def acknowledge_and_hold(self: PendingQueue, *arguments: Any) -> None:
        await acknowledge(self, *arguments)
        hold(self._segments._storage, "share-after-accept")

    def write_or_wait(self: BatchLedger, *arguments: Any) -> None:
        if Path(self._storage.location).parent.name == "share-after-accept":
            threading.Event().wait()
        write(self, *arguments)

    for kind, name, replacement in (
        (LocalStorage, "publish", publish_or_hold),
        (PendingSegments, "keep", keep_and_hold),
        (PendingQueue, "_keep", acknowledge_and_hold),
        (BatchLedger, "write", write_or_wait),
    ):
        setattr(kind, name, replacement)


def main(address: str, directory: Path) -> None:
    install()

    def handler(df: DataFrame, _: int) -> None:
        # Some of the work is done when the end comes.
        df.write.mode("overwrite").parquet(str(directory / "half-done"))
        holding.add("share-in-handler")
        held.release()
        threading.Event().wait()

    spark = small_session()
    for moment in MOMENTS:
        foreach_batch(
            spark,
            lent(address, moment),
            handler,
            checkpoint_location=str(directory / moment),
        )
    for _ in MOMENTS:
        held.acquire()
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
