"""Each link leads to a page, a heading or a file that exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.pages import DOCS, PAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

OURS: Final = "https://github.com/fanout-streams/fanout/blob/main/"
MORE: Final = (ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")


def slugs(path: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", [*PAGES, *MORE], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    for link in links:
        target, _, anchor = link.partition("#")
        if link.startswith(OURS):
            found = ROOT / target.removeprefix(OURS)
        elif re.match(r"https?:", link):
            continue
        else:
            found = page.parent / target if target else page
        if found == DOCS / "cli.md" or found.parent == DOCS / "api":
            continue  # written by `make site`, which checks the links to them
        assert found.exists(), link
        if anchor not in {"", "only-light", "only-dark"}:
            assert anchor in slugs(found), link
        assert page.is_relative_to(DOCS) <= found.resolve().is_relative_to(DOCS) or link.startswith(
            OURS
        ), f"{link} leaves docs: the site does not have it; link to {OURS}"
