"""The durable log behind a query: numbered entries, their segments, and who may write them."""
