"""Write Arrow records to Kafka: encode, send to the leaders of partitions, and confirm."""
