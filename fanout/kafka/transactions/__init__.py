"""Transactions that any process can finish: begun, marked, committed or aborted by a token."""
