"""Kill `fanout land` while it writes tables, and count what they have."""
