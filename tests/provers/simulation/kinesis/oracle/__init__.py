"""What a reader must get, and may do, held against what it gets and does."""
