"""Which run may write to a checkpoint or a landing."""
