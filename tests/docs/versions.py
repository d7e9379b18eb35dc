"""The versions of the site that stand beside each other, for the selector of its theme.

`versions.json` has the form of mike, whose provider the theme reads.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("write_versions",)


def write_versions(site: Path) -> None:
    """List the versions in a directory, newest first, and let its first page lead to the newest."""
    found = (path.name for path in site.iterdir() if re.fullmatch(r"\d+\.\d+", path.name))
    names = sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if name == names[0] else []}
        for name in names
    ]
    (site / "versions.json").write_text(json.dumps(entries))
    newest = names[0]
    (site / "index.html").write_text(
        "<!doctype html><title>fanout</title>"
        f'<meta http-equiv="refresh" content="0; url={newest}/"><a href="{newest}/">{newest}</a>\n'
    )
