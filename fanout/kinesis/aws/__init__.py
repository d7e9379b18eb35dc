"""Calls to Kinesis: clients, sessions, credentials, and what errors mean."""
