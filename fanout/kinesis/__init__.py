"""Amazon Kinesis Data Streams through enhanced fan-out."""
