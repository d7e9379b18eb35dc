from __future__ import annotations

from fanout.testing.trials.oracle import OutputVerdict
from tests.provers.crash.final_comparison import worse_of


def verdict(*, lost: int = 0, duplicated: int = 0, read: int = 8) -> OutputVerdict:
    return OutputVerdict(
        produced=8, read=read, lost=lost, duplicated=duplicated, altered=0, out_of_order=0
    )


def test_the_worse_of_two_verdicts_has_the_larger_of_each_count() -> None:
    worse = worse_of(verdict(lost=1, duplicated=5), verdict(lost=4, read=9))
    assert worse == verdict(lost=4, duplicated=5, read=9)
