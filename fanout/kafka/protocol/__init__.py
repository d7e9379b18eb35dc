"""Connections to brokers, their metadata and coordinators, and the codes of their errors."""
