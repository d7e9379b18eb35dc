"""How long a test waits before it takes what it waits for as hanging."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 120.0
"""Seconds. It is no measure of speed: on a machine that does other work a JVM takes half a minute
to start. It is shorter than the timeout of a test, so that the assertion is what fails."""
