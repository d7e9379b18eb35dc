"""What the driver and Spark's Python workers need to run tasks of fanout."""
