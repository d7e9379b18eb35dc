"""What is done with a whole column: by Arrow's kernels, or row by row where there are few rows.

The calls of the kernels cost as much as Python takes for dozens of rows, and most events of a quiet
shard have no row or a few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("ARRIVAL", "FEW_ROWS", "all_decimal", "is_decimal", "microseconds", "timestamps")

FEW_ROWS: Final = 32

ARRIVAL: Final = pa.timestamp("us", tz="UTC")


def is_decimal(text: str, max_digits: int) -> bool:
    """Tell whether a text is 1 to `max_digits` of the digits 0 to 9, and nothing else."""
    return text.isascii() and text.isdecimal() and len(text) <= max_digits


def all_decimal(texts: pa.StringArray, max_digits: int) -> bool:
    """Tell whether `is_decimal` holds for every text of a column."""
    if len(texts) <= FEW_ROWS:
        return all(is_decimal(text, max_digits) for text in texts.to_pylist())
    if pc.ascii_is_decimal(texts).false_count:
        return False
    longest: int = pc.max(pc.binary_length(texts)).as_py()
    return longest <= max_digits


def microseconds(seconds: float | None) -> int | None:
    """Turn seconds into microseconds, exact to the millisecond that the service sends."""
    return None if seconds is None else round(seconds * 1000) * 1000


def timestamps(seconds: Sequence[float | None]) -> pa.TimestampArray:
    """Turn seconds into timestamps, each as `microseconds` does."""
    milliseconds = pc.round(pc.multiply(pa.array(seconds, pa.float64()), 1000.0))
    return pc.multiply(milliseconds.cast(pa.int64()), 1000).view(ARRIVAL)
