"""Reading shards: event streams, records, polling, and recovery."""
