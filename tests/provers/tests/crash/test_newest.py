from __future__ import annotations

import pytest

from fanout.testing.trials.oracle import OutputVerdict
from fanout.testing.trials.records import value_of
from tests.provers.crash.moments import SUFFIX, Pipeline
from tests.provers.crash.newest import compare_newest
from tests.provers.crash.sinks.destination import Row

PIPELINE = Pipeline.KINESIS
PRODUCED = {"a": 7, "b": 6}


def row(key: str, number: int) -> Row:
    return Row(key.encode(), value_of(PIPELINE, key, number) + SUFFIX)


NEWEST = (row("a", 7), row("b", 6))


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        (NEWEST, {}),
        (NEWEST[:1], {"lost": 1}),
        ((*NEWEST, NEWEST[0]), {"duplicated": 1}),
        ((row("a", 3), NEWEST[1]), {"lost": 1, "altered": 1}),
        ((*NEWEST, row("a", 3)), {"altered": 1}),
        ((*NEWEST, row("c", 0)), {"altered": 1}),
        ((*NEWEST, Row(None, None)), {"altered": 1}),
        ((Row(b"a", NEWEST[1].value), NEWEST[1]), {"lost": 1, "altered": 1}),
        ((), {"lost": 2}),
    ],
)
def test_a_table_with_the_newest_records_has_one_row_for_each_key(
    rows: tuple[Row, ...], counts: dict[str, int]
) -> None:
    none = {"lost": 0, "duplicated": 0, "altered": 0, "out_of_order": 0}
    expected = OutputVerdict(produced=2, read=len(rows), **none | counts)
    assert compare_newest(PIPELINE, rows, PRODUCED) == expected
