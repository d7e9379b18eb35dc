"""The durable log: numbered entries, their positions, and what readers learn from them."""
