"""docs/failures.md: each type of error with its cause and its remedy."""

from __future__ import annotations

import re

import pytest

from fanout import errors
from tests.support.pages import page

ROWS = dict(
    re.findall(
        r"^\| `(\w+Error)` \| (.+ \| .+) \|$",
        page("failures.md").split("## Errors by type")[1],
        re.MULTILINE,
    )
)


def test_the_page_names_every_error_but_the_root() -> None:
    assert {*ROWS, "FanOutError"} == set(errors.__all__)


@pytest.mark.parametrize("name", ROWS)
def test_the_page_says_which_errors_are_retryable_and_which_are_builtin_too(name: str) -> None:
    kind = getattr(errors, name)
    assert ("retryable" in ROWS[name]) == kind.retryable
    for builtin in (ValueError, RuntimeError):
        assert (f"`{builtin.__name__}`" in ROWS[name]) == issubclass(kind, builtin)
