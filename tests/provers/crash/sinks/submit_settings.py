"""Spark's settings in the environment of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("submit_settings",)


def submit_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a driver with settings of Spark.

    Args:
        settings: The settings.
    """
    words = [f"--conf {name}={value}" for name, value in settings.items()]
    return {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])}
