"""Durable files below a checkpoint location, and the one run that may write them."""
