"""Append Kinesis to an Iceberg table with Spark, exactly once.

The summary of a batch's snapshot has the batch's id. A batch whose id is there is skipped.

Setup:

    pip install 'fanout-streams[kinesis,spark]' 'pyspark==3.5.*'    # and Java 17
    export PACKAGES=org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.11.0
    export PYSPARK_SUBMIT_ARGS="--packages $PACKAGES pyspark-shell"
    export AWS_DEFAULT_REGION=eu-west-1                    # and credentials, as for any AWS SDK
    export WAREHOUSE=/var/lib/orders/warehouse
    export CHECKPOINT=/var/lib/orders/to-iceberg
    aws kinesis create-stream --stream-name orders --shard-count 2
    python kinesis_to_iceberg.py

Iceberg's jar is for one version of Spark. There is none for pyspark 4.3 yet.
"""

import os

from pyspark.sql import SparkSession

from fanout.kinesis import KinesisSource
from fanout.spark import IcebergSink, foreach_batch, stop_on_signal

EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

with stop_on_signal():  # SIGTERM and Ctrl-C end the job after its batch
    spark = (
        SparkSession.builder.config("spark.sql.extensions", EXTENSION)
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", os.environ["WAREHOUSE"])
        .getOrCreate()
    )
    query = foreach_batch(
        spark,
        KinesisSource(stream="orders", consumer="orders-to-iceberg", start="TRIM_HORIZON"),
        IcebergSink(table="lake.shop.orders"),
        checkpoint_location=os.environ["CHECKPOINT"],
    )
    query.await_termination()
