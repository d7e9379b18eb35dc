"""Logs of others that name the files of a landing, each derived from its entries."""
