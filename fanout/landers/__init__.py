"""Landers: processes that read some of the splits of a query for its driver."""
