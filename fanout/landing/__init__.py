"""The durable log of a query: numbered batch entries, their segments, and its ownership."""
