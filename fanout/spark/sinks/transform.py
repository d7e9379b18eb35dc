"""A user's function from a batch to the DataFrame that a sink writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import DataFrame

from fanout.core.user_functions import check_function, unfinished
from fanout.errors import OptionError

Transform: TypeAlias = Callable[[DataFrame], DataFrame]
"""From the rows of a batch to what is written of them."""


def check_transform(transform: object) -> None:
    """Raise OptionError unless the option `transform` is None or a function of a DataFrame."""
    if transform is not None:
        check_function("transform", transform, "a function of a DataFrame", arguments=1)


def transformed(df: DataFrame, transform: Transform | None) -> DataFrame:
    """Return what a sink writes of a batch; without a transform the rows as they are.

    Raises:
        OptionError: If it returns something else than a DataFrame.
    """
    if transform is None:
        return df
    found: object = transform(df)
    if not isinstance(found, DataFrame):
        what = unfinished(found) or ("None" if found is None else f"a {type(found).__name__}")
        raise OptionError(f"transform must return a DataFrame, and returned {what}")
    return found
