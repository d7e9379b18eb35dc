"""Compare a table with the newest record of each key: by key and number."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fanout.testing.trials.oracle import OutputVerdict
from fanout.testing.trials.records import read_number
from tests.provers.crash.moments import SUFFIX

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
        produced: The number of the newest record of each key.

    Returns:
        The counts of rows. Lost is the newest record of a key that is not there; altered is a row
        that is none of the campaign, or that a newer one should have replaced.
    """
    found = Counter((row.key, row.value) for row in rows)
    newest: Counter[str] = Counter()
    altered = 0
    for (key, value), count in found.items():
        name = (key or b"").decode(errors="replace")
        number = read_number(pipeline, name, value or b"", SUFFIX)
        if number is not None and number == produced.get(name):
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
