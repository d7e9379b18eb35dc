"""Arrow records into Kafka: encoded, sent to the partitions' leaders in order, and confirmed."""
