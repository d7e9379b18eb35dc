"""Check what a reader gets and does against what it must get and may do."""
