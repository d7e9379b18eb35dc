"""Copy Kinesis to Kafka with Spark, exactly once.

Each batch is one transaction of Kafka, so readers need isolation.level=read_committed. If the
driver dies, the next run finishes or aborts its transaction, and no record is lost or repeated.

Setup:

    pip install 'fanout-streams[kinesis,kafka,spark]'      # and Java 17 or newer
    export AWS_DEFAULT_REGION=eu-west-1                    # and credentials, as for any AWS SDK
    export KAFKA_BOOTSTRAP_SERVERS=broker-1:9093 KAFKA_USERNAME=etl KAFKA_PASSWORD=...
    export CHECKPOINT=/var/lib/orders/to-kafka             # or s3a://..., see README.md
    aws kinesis create-stream --stream-name orders --shard-count 2
    kafka-topics.sh --create --topic orders-copy --partitions 4 --bootstrap-server ...
    python kinesis_to_kafka.py

For a broker on this machine without TLS and passwords, set KAFKA_PROTOCOL=PLAINTEXT instead of the
user and the password; README.md shows how to start one.
"""

import os

from pyspark.sql import SparkSession

from fanout.kafka import Cluster, Security
from fanout.kinesis import KinesisSource
from fanout.spark import KafkaSink, foreach_batch, stop_on_signal


def security():
    """Return the security of the cluster; called in Spark's workers too, so nothing is sent."""
    return Security(
        protocol=os.environ.get("KAFKA_PROTOCOL", "SASL_SSL"),
        username=os.environ.get("KAFKA_USERNAME"),
        password=os.environ.get("KAFKA_PASSWORD"),
    )


def to_kafka(df):
    """Return the columns that Kafka takes: a customer's orders keep their order by their key."""
    return df.selectExpr("partitionKey AS key", "data AS value")


with stop_on_signal():  # SIGTERM and Ctrl-C end the job after its batch
    spark = SparkSession.builder.getOrCreate()
    sink = KafkaSink(
        cluster=Cluster(os.environ["KAFKA_BOOTSTRAP_SERVERS"], security=security),
        topic="orders-copy",
        transform=to_kafka,
    )
    query = foreach_batch(
        spark,
        KinesisSource(stream="orders", consumer="orders-to-kafka", start="TRIM_HORIZON"),
        sink,
        checkpoint_location=os.environ["CHECKPOINT"],
    )
    query.await_termination()
