"""What an example has stored in PostgreSQL."""

from __future__ import annotations

import psycopg

__all__ = ("stored",)


def stored(url: str) -> list[bytes]:
    """Return the data of all orders in the database, in order."""
    with psycopg.connect(url) as database:
        try:
            rows = database.execute("SELECT data FROM orders").fetchall()
        except psycopg.errors.UndefinedTable:
            return []
    return sorted(data.encode() for (data,) in rows)
