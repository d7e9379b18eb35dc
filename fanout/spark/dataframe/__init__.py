"""A landing as Spark's `format("fanout")`, on pyspark 4."""
