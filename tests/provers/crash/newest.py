"""Compare a table with the newest record of each key: by key and number."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.provers.crash.oracle import OutputVerdict
from tests.provers.crash.records import SUFFIX, read_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.provers.crash.moments import Pipeline
    from tests.provers.crash.sinks.destination import Row

__all__ = ("compare_newest",)


def compare_newest(
    pipeline: Pipeline, rows: Iterable[Row], produced: Mapping[str, int]
) -> OutputVerdict:
    """Compare the rows of a table that merges with what was produced.

    Args:
        pipeline: The pipeline.
        rows: The rows.
        produced: How many records of each key were.

    Returns:
        The counts of rows. Lost is the newest record of a key that is not there; altered is a row
        that is none of the campaign, or that a newer one should have replaced.
    """
    found = Counter((row.key, row.value) for row in rows)
    newest: Counter[str] = Counter()
    altered = 0
    for (key, value), count in found.items():
        name, text = (key or b"").decode(errors="replace"), (value or b"").decode(errors="replace")
        if read_number(pipeline, name, text, SUFFIX) == produced.get(name, 0) - 1:
            newest[name] = count
        else:
            altered += count
    return OutputVerdict(
        produced=len(produced),
        read=found.total(),
        lost=sum(not newest[name] for name in produced),
        duplicated=sum(count - 1 for count in newest.values()),
        altered=altered,
        out_of_order=0,
    )
