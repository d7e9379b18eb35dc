"""Begin, mark, commit and abort transactions; any process can finish one by its token."""
