"""What the sinks of databases share: the table of batches, and the names of staging tables."""

from __future__ import annotations

import hashlib
from typing import Final

BATCHES: Final = "fanout_batches"
"""The table with the newest batch of each sink, in the schema of the tables that they write."""


def staging_prefix(writer: str, digits: int) -> str:
    """Return what the names of a sink's staging tables begin with.

    That many hexadecimal `digits` tell it from other sinks.
    """
    return f"fanout_{hashlib.sha256(writer.encode()).hexdigest()[:digits]}_"
