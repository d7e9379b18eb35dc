"""Answers of Fetch as Arrow columns."""
