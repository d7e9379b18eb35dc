"""Share the shards of a stream by leases in DynamoDB."""
