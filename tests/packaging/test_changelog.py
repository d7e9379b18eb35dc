from __future__ import annotations

import pytest

from tests.packaging.changelog import ChangelogError, check_changelog
from tests.support.pages import ROOT

RELEASED = """# Changelog

All notable changes.

## [Unreleased]

## [0.2.0] - 2026-11-24

### Added

- A source.

## [0.1.0] - 2026-01-02

- First version.
"""


def test_a_dated_section_of_the_version_is_complete() -> None:
    check_changelog(RELEASED, "0.2.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            RELEASED.replace(" - 2026-11-24", ""),
            "newest section",
        ),
        (RELEASED.replace("2026-11-24", "2026-11-31"), "newest section"),
        (RELEASED.replace("0.2.0", "0.2.1"), "newest section"),
        (RELEASED.replace("[Unreleased]\n", "[Unreleased]\n\n- A sink.\n"), "move them"),
        (RELEASED.replace("- A source.\n", ""), "no entries"),
        (RELEASED.replace("## [Unreleased]\n", ""), "must begin"),
        ("# Changelog\n\n## [Unreleased]\n", "newest section"),
        ("", "must begin"),
    ],
)
def test_what_is_missing_is_said(text: str, message: str) -> None:
    with pytest.raises(ChangelogError, match=message):
        check_changelog(text, "0.2.0")


def test_an_older_section_is_not_released_again() -> None:
    with pytest.raises(ChangelogError, match="newest section"):
        check_changelog(RELEASED, "0.1.0")


def test_our_own_changelog_is_in_its_form() -> None:
    released = (ROOT / "CHANGELOG.md").read_text()
    with pytest.raises(ChangelogError, match=r"move them|newest section"):
        check_changelog(released, "999")
