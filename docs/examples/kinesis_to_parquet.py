"""Write Kinesis to Parquet with Spark, each record once.

Each batch has a directory of its own. A batch whose directory has the marker _SUCCESS is skipped
when it comes again.

Setup:

    pip install 'fanout-streams[kinesis,spark]'            # and Java 17 or newer
    export AWS_DEFAULT_REGION=eu-west-1                    # and credentials, as for any AWS SDK
    export OUTPUT=/var/lib/orders/parquet                  # or s3a://...
    export CHECKPOINT=/var/lib/orders/to-parquet           # or s3a://..., see README.md
    aws kinesis create-stream --stream-name orders --shard-count 2
    python kinesis_to_parquet.py
"""

import os

from pyspark.sql import SparkSession

from fanout.kinesis import KinesisSource
from fanout.spark import ParquetSink, foreach_batch, stop_on_signal

with stop_on_signal():  # SIGTERM and Ctrl-C end the job after its batch
    spark = SparkSession.builder.getOrCreate()
    query = foreach_batch(
        spark,
        KinesisSource(stream="orders", consumer="orders-to-parquet", start="TRIM_HORIZON"),
        ParquetSink(path=os.environ["OUTPUT"]),
        checkpoint_location=os.environ["CHECKPOINT"],
    )
    query.await_termination()
