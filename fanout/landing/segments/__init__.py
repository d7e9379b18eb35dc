"""The Parquet files of a batch, and how they are filled."""
