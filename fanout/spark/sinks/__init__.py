"""What writes a batch to a place outside of Spark, each batch once."""
