"""Read Kafka into PostgreSQL with Spark, exactly once.

The id of a batch is stored in the same transaction as its rows. A batch that comes again after a
failure finds its id there, and writes nothing.

Setup:

    pip install 'fanout-streams[kafka,spark,postgres]'    # and Java 17 or newer
    export KAFKA_BOOTSTRAP_SERVERS=broker-1:9093 KAFKA_USERNAME=etl KAFKA_PASSWORD=...
    export DATABASE_URL=postgresql://etl:...@db-1/shop
    export CHECKPOINT=/var/lib/orders/to-postgres
    kafka-topics.sh --create --topic orders --partitions 4 --bootstrap-server ...
    psql $DATABASE_URL -c 'CREATE TABLE orders (customer text, data text)'
    python kafka_to_postgres.py

For a broker on this machine without TLS and passwords, set KAFKA_PROTOCOL=PLAINTEXT instead of the
user and the password; README.md shows how to start one.
"""

import os

from pyspark.sql import SparkSession

from fanout.kafka import Cluster, KafkaSource, Security
from fanout.spark import PostgresSink, foreach_batch, stop_on_signal


def security():
    """Return the security of the cluster."""
    return Security(
        protocol=os.environ.get("KAFKA_PROTOCOL", "SASL_SSL"),
        username=os.environ.get("KAFKA_USERNAME"),
        password=os.environ.get("KAFKA_PASSWORD"),
    )


with stop_on_signal():  # SIGTERM and Ctrl-C end the job after its batch
    spark = SparkSession.builder.getOrCreate()
    cluster = Cluster(os.environ["KAFKA_BOOTSTRAP_SERVERS"], security=security)
    sink = PostgresSink(
        table="orders",
        dsn=lambda: os.environ["DATABASE_URL"],
        transform=lambda df: df.selectExpr(
            "cast(key AS string) AS customer", "cast(value AS string) AS data"
        ),
    )
    query = foreach_batch(
        spark,
        KafkaSource(cluster=cluster, topics="orders"),
        sink,
        checkpoint_location=os.environ["CHECKPOINT"],
    )
    query.await_termination()
