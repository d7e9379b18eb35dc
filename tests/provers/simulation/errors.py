"""The errors of a run in which the library breaks a promise."""

from __future__ import annotations

__all__ = ("OracleError", "SimulationError")


class OracleError(AssertionError):
    """A promise is broken; the text begins with the kind: lost, duplicated, out of order, ..."""


class SimulationError(AssertionError):
    """A run has shown a defect; the text has the plan that shows it again."""
