"""A Kafka cluster that a simulated job reads: its logs, brokers, faults, and what must arrive."""
