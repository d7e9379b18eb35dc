"""Copy one stream of Kinesis to another with Spark: nothing is lost, and repeats have one id.

Kinesis has no transactions. A batch that was being written when the job died is written again, with
the same deduplication ids: readers take them out with read_deduplication_ids, and drop what they
have seen.

Setup:

    pip install 'fanout-streams[kinesis,spark]'            # and Java 17 or newer
    export AWS_DEFAULT_REGION=eu-west-1                    # and credentials, as for any AWS SDK
    export CHECKPOINT=/var/lib/orders/to-kinesis           # or s3a://..., see README.md
    aws kinesis create-stream --stream-name orders --shard-count 2
    aws kinesis create-stream --stream-name orders-copy --shard-count 2
    python kinesis_to_kinesis.py
"""

import os

from pyspark.sql import SparkSession

from fanout.kinesis import KinesisSource
from fanout.spark import KinesisSink, foreach_batch, stop_on_signal


def to_kinesis(df):
    """Return the columns that Kinesis takes: a customer's orders keep their order by their key."""
    return df.select("partitionKey", "data")


with stop_on_signal():  # SIGTERM and Ctrl-C end the job after its batch
    spark = SparkSession.builder.getOrCreate()
    sink = KinesisSink(stream="orders-copy", deduplicate=True, transform=to_kinesis)
    query = foreach_batch(
        spark,
        KinesisSource(stream="orders", consumer="orders-to-kinesis", start="TRIM_HORIZON"),
        sink,
        checkpoint_location=os.environ["CHECKPOINT"],
    )
    query.await_termination()
