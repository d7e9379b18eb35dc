"""Requests and answers of Kafka's protocol that aiokafka lacks."""
