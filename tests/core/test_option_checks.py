from __future__ import annotations

import pytest

from fanout.core.option_checks import check_memory, number, one_of, whole
from fanout.errors import OptionError


def test_a_number_is_no_flag_and_no_text() -> None:
    assert number("x", 1.5) == 1.5
    for wrong in (True, "1", None):
        with pytest.raises(OptionError, match="must be a number"):
            number("x", wrong)


def test_a_whole_number_has_no_fraction() -> None:
    assert whole("x", 2) == 2
    for wrong in (2.0, True, "2"):
        with pytest.raises(OptionError, match=r"must be a whole number$"):
            whole("x", wrong)


def test_a_choice_names_all_that_may_be_chosen() -> None:
    one_of("x", "a", "a", "b")
    with pytest.raises(OptionError, match="x='c' is not understood; use 'a' or 'b'"):
        one_of("x", "c", "a", "b")


def test_the_largest_event_fits_into_the_memory_of_all() -> None:
    check_memory(1, 1)
    for event, in_flight in ((0, 1), (2, 1)):
        with pytest.raises(OptionError, match="at least 1 and at most"):
            check_memory(event, in_flight)
