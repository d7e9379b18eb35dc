"""What a release needs from CHANGELOG.md, whose form is Keep a Changelog's.

https://keepachangelog.com/en/1.1.0/
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

__all__ = ("ChangelogError", "check_changelog")

_SECTION: Final = re.compile(r"^## (\[.+)$", re.MULTILINE)


class ChangelogError(Exception):
    """The changelog does not fit the version that is to be released."""


def check_changelog(text: str, version: str) -> None:
    """Check that the newest section is that of a version, and complete.

    Raises:
        ChangelogError: It has no date or no entries, is not the newest one, or entries were left
            in the section of what is not released.
    """
    titles = _SECTION.findall(text)
    bodies = [body.strip() for body in _SECTION.split(text)[2::2]]
    if titles[:1] != ["[Unreleased]"]:
        raise ChangelogError("CHANGELOG.md must begin with a section '## [Unreleased]'")
    if bodies[0]:
        raise ChangelogError(
            f"CHANGELOG.md has entries in [Unreleased]: move them to '## [{version}] - YYYY-MM-DD'"
        )
    if not titles[1:] or not _is_dated(titles[1], version):
        raise ChangelogError(
            f"the newest section of CHANGELOG.md must be '## [{version}] - YYYY-MM-DD', "
            "with the version of pyproject.toml and the day of the release"
        )
    if not re.search(r"^- ", bodies[1], re.MULTILINE):
        raise ChangelogError(f"the section [{version}] of CHANGELOG.md has no entries")


def _is_dated(title: str, version: str) -> bool:
    name, _, day = title.partition(" - ")
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    return name == f"[{version}]"
