"""Judge a number of landers before they run: for what they read, and the cores that they hold."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from fanout.core.findings import fine, unknown, warning

if TYPE_CHECKING:
    from fanout.core.findings import Finding

LANDERS_APART: Final = 0.1
"""Landers begin so many seconds apart: Kinesis takes 20 descriptions of a stream a second."""

# What a lander decodes, in bytes a second; see docs/scaling.md.
_LANDER_RATE: Final = 50_000_000
_MEGABYTE: Final = 1_000_000


def lander_count(
    landers: int, splits: int, name: str, *, bytes_per_second: int | None = None
) -> Finding:
    """Compare a number of landers with the splits that they would share.

    `name` is what the open splits are called, such as "open shards". `bytes_per_second` is the most
    that the service sends of one split; None for no limit.
    """
    if not splits:
        return unknown("landers", f"{landers}, and there are no {name} to compare them with")
    detail = f"{landers} for {splits:,} {name if splits > 1 else name.removesuffix('s')}"
    if landers > splits:
        idle = landers - splits
        return warning(
            "landers",
            f"{detail}: {idle} would have nothing to read, and hold a core each",
            f"use --landers {splits} at most; a reshard or new partitions may need more later",
        )
    each = ceil(splits / landers)
    if bytes_per_second is None:
        return fine(
            "landers",
            f"{detail}: {each} at most for each lander, which takes 50 to 60 MB/s; no limit of the "
            f"service says how much they send",
        )
    rate = each * bytes_per_second
    detail += f": {each} at most for each lander, which send up to {rate / _MEGABYTE:,.0f} MB/s"
    if rate > _LANDER_RATE * 1.2:
        enough = min(splits, ceil(splits * bytes_per_second / _LANDER_RATE))
        return warning(
            "landers",
            f"{detail}, and a lander takes 50 to 60 MB/s",
            f"use --landers {enough} if all {name} are as busy as that; `query.progress().landers` "
            f"shows how much each lander reads",
        )
    return fine("landers", detail)


def lander_cores(landers: int) -> Finding:
    """Say how many cores Spark needs."""
    hold = "1 lander holds a core" if landers == 1 else f"{landers} landers hold {landers} cores"
    return fine(
        "cores for landers",
        f"{hold} for as long as the query runs, and batches need others: give Spark {landers + 1} "
        f"cores at least",
    )
