"""Append Kinesis to a Delta table with Spark, exactly once.

Delta stores txnAppId and txnVersion in the commit of a write, and skips a write that it has already
committed: https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch

Setup:

    pip install 'fanout-streams[kinesis,spark]' 'pyspark==4.2.*'    # and Java 17 or newer
    export PYSPARK_SUBMIT_ARGS='--packages io.delta:delta-spark_4.2_2.13:4.4.0 pyspark-shell'
    export AWS_DEFAULT_REGION=eu-west-1                    # and credentials, as for any AWS SDK
    export TABLE=/var/lib/orders/table                     # or s3a://...
    export CHECKPOINT=/var/lib/orders/to-delta             # or s3a://..., see README.md
    aws kinesis create-stream --stream-name orders --shard-count 2
    python kinesis_to_delta.py

Delta's jars are for one version of Spark each. For pyspark 3.5 they are
io.delta:delta-spark_2.12:3.3.2; there are none for 4.3 yet.
"""

import os

from pyspark.sql import SparkSession

from fanout.kinesis import KinesisSource
from fanout.spark import foreach_batch


def write(df, batch_id):
    """Append a batch, unless an earlier run has committed it."""
    # Batch ids begin again at 0 with a new checkpoint, and so does a new query id.
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    writer = df.write.format("delta").mode("append")
    writer = writer.option("txnAppId", query_id).option("txnVersion", batch_id)
    writer.save(os.environ["TABLE"])


spark = (
    SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
query = foreach_batch(
    spark,
    KinesisSource(stream="orders", consumer="orders-to-delta", start="TRIM_HORIZON"),
    write,
    checkpoint_location=os.environ["CHECKPOINT"],
)
query.await_termination()
