from __future__ import annotations

import pytest

from fanout.core.error_text import Causes


def test_causes_are_counted_by_name() -> None:
    causes = Causes()
    for name in ("Cut", "Cut", "KMSThrottlingException"):
        causes.count(name)
    assert causes.counts == {"Cut": 2, "KMSThrottlingException": 1}


def test_ever_new_causes_count_as_others() -> None:
    causes = Causes()
    for number in range(1000):
        causes.count(f"Error{number}")
    causes.count("Error7")
    assert len(causes.counts) == 51
    assert causes.counts["_OTHER"] == 950
    assert causes.counts["Error7"] == 2


@pytest.mark.parametrize("name", ["", "an error: of key 7", "x" * 101, "a\nb", "key-7"])
def test_what_is_no_name_counts_as_another_cause(name: str) -> None:
    causes = Causes()
    causes.count(name)
    assert causes.counts == {"_OTHER": 1}
