"""Read Kafka into PostgreSQL with Spark, exactly once.

The id of a batch is inserted in the same transaction as its rows. A batch that comes again after a
failure finds its id there, and writes nothing.

Setup:

    pip install 'fanout-streams[kafka,spark]' 'psycopg[binary]'    # and Java 17 or newer
    export KAFKA_BOOTSTRAP_SERVERS=broker-1:9093 KAFKA_USERNAME=etl KAFKA_PASSWORD=...
    export DATABASE_URL=postgresql://etl:...@db-1/shop
    export CHECKPOINT=/var/lib/orders/to-postgres
    kafka-topics.sh --create --topic orders --partitions 4 --bootstrap-server ...
    python kafka_to_postgres.py

For a broker on this machine without TLS and passwords, set KAFKA_PROTOCOL=PLAINTEXT instead of the
user and the password; README.md shows how to start one.
"""

import os

import psycopg
from pyspark.sql import SparkSession

from fanout.kafka import Cluster, KafkaSource, Security
from fanout.spark import foreach_batch

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (partition int, "offset" bigint, customer text, data text);
CREATE TABLE IF NOT EXISTS batches (query text, batch bigint, PRIMARY KEY (query, batch));
"""


def security():
    """Return the security of the cluster."""
    return Security(
        protocol=os.environ.get("KAFKA_PROTOCOL", "SASL_SSL"),
        username=os.environ.get("KAFKA_USERNAME"),
        password=os.environ.get("KAFKA_PASSWORD"),
    )


def write(df, batch_id):
    """Write the rows of a batch and its id in one transaction."""
    # Batch ids begin again at 0 with a new checkpoint, and so does a new query id.
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    rows = df.selectExpr("partition", "offset", "cast(key AS string)", "cast(value AS string)")
    with psycopg.connect(os.environ["DATABASE_URL"]) as database:  # commits at its end
        new = database.execute(
            "INSERT INTO batches VALUES (%s, %s) ON CONFLICT DO NOTHING", (query_id, batch_id)
        )
        if new.rowcount == 0:  # committed by an earlier run
            return
        with database.cursor().copy("COPY orders FROM STDIN") as copy:
            for row in rows.toLocalIterator():
                copy.write_row(row)


with psycopg.connect(os.environ["DATABASE_URL"]) as database:
    database.execute(SCHEMA)
spark = SparkSession.builder.getOrCreate()
cluster = Cluster(os.environ["KAFKA_BOOTSTRAP_SERVERS"], security=security)
query = foreach_batch(
    spark,
    KafkaSource(cluster=cluster, topics="orders"),
    write,
    checkpoint_location=os.environ["CHECKPOINT"],
)
query.await_termination()
