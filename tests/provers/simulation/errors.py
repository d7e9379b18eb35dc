"""The error that an oracle raises where the library breaks a promise."""

from __future__ import annotations

__all__ = ("OracleError",)


class OracleError(AssertionError):
    """A promise is broken; the text begins with the kind: lost, duplicated, out of order, ..."""
