"""Append Kinesis to a Delta table with Spark, exactly once.

The commit of a batch stores the batch's id, and Delta skips a batch that it has committed.

Setup:

    pip install 'fanout-streams[kinesis,spark]' 'pyspark==4.2.*'    # and Java 17 or newer
    export PYSPARK_SUBMIT_ARGS='--packages io.delta:delta-spark_4.2_2.13:4.4.0 pyspark-shell'
    export AWS_DEFAULT_REGION=eu-west-1                    # and credentials, as for any AWS SDK
    export TABLE=/var/lib/orders/table                     # or s3a://...
    export CHECKPOINT=/var/lib/orders/to-delta             # or s3a://..., see README.md
    aws kinesis create-stream --stream-name orders --shard-count 2   # or `fanout kinesis-server`
    python kinesis_to_delta.py

Delta's jars are for one version of Spark each. For pyspark 3.5 they are
io.delta:delta-spark_2.12:3.3.2; there are none for 4.3 yet.
"""

import os

from pyspark.sql import SparkSession

from fanout.kinesis import KinesisSource
from fanout.spark import DeltaSink, foreach_batch, stop_on_signal

with stop_on_signal():  # SIGTERM and Ctrl-C end the job after its batch
    spark = (
        SparkSession.builder.config(
            "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
        )
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .getOrCreate()
    )
    query = foreach_batch(
        spark,
        KinesisSource(stream="orders", consumer="orders-to-delta", start="TRIM_HORIZON"),
        DeltaSink(path=os.environ["TABLE"]),
        checkpoint_location=os.environ["CHECKPOINT"],
    )
    query.await_termination()
