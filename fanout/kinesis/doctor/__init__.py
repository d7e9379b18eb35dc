"""Checks of a stream, its consumer, permissions and this machine."""
