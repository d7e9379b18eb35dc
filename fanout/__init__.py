"""Reactive fan-out from Kinesis and Kafka into asyncio and Spark."""
