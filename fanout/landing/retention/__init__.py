"""The deletion of what is old, and who must have read it before."""
