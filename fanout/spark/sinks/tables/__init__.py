"""Sinks that write each batch of a query once: into files, tables of a lakehouse, and databases."""
