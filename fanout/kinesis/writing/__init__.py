"""Write records to Kinesis: queue them by shard and key, put them, and put again what failed."""
