"""A driver whose virtual environment is not activated: it writes one batch to Kafka.

Its arguments: Spark's master, the broker, the topic to read, the topic to write and the checkpoint.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from fanout.errors import FanOutError
from fanout.kafka import Cluster, KafkaSource, Security
from fanout.spark import KafkaSink, foreach_batch
from fanout.testing.spark.session import small_settings


def main(master: str, broker: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.master(master).config(map=small_settings()).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    cluster = Cluster(broker, security=Security(protocol="PLAINTEXT"))
    remote = Cluster(broker, security=lambda: Security(protocol="PLAINTEXT"))
    sink = KafkaSink(
        cluster=remote, topic=target, transform=lambda df: df.selectExpr("key", "value")
    )
    try:
        foreach_batch(
            spark,
            KafkaSource(cluster=cluster, topics=source),
            sink,
            checkpoint_location=checkpoint,
            available_now=True,
        ).await_termination()
    except FanOutError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
