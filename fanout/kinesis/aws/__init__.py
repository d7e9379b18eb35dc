"""Calls to Kinesis: clients, sessions, credentials, and hints on errors."""
