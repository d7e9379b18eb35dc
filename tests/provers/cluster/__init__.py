"""All that reads and writes Kafka, on nodes that fail, beside librdkafka on the same fault."""
