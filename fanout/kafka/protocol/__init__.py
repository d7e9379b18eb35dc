"""Talking to brokers: connections, frames, security, and what every kind of call needs."""
