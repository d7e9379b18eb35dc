"""The fan-out itself; knows no service and no Spark."""
