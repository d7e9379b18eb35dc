"""Write the batches of a query to a stream of Kinesis: one Spark job a batch, a task for keys."""
