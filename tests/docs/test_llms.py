"""`llms.txt` has each page of the site, and says in a sentence what it is about."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.docs.llms import files
from tests.docs.navigation import Page, navigation

PAGES: Final = navigation()
FILES: Final = dict(files(PAGES))
LINE: Final = re.compile(r"^- \[(.+?)\]\((.+?)\): (.+)$", re.MULTILINE)
LINES: Final = {
    address: (title, about) for title, address, about in LINE.findall(FILES["llms.txt"])
}


def test_it_begins_with_the_name_and_what_the_library_is() -> None:
    first, _, about = FILES["llms.txt"].split("\n")[:3]
    assert first == "# fanout"
    assert about == "> fanout is a Python library that reads Amazon Kinesis and Apache Kafka."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_is_named_with_a_sentence(page: Page) -> None:
    made = page.path.startswith("api/")
    title, about = LINES[page.path.removesuffix(".md") + "/" if made else page.path]
    assert title == page.title
    assert re.fullmatch(r"[^\n|]{15,250}[.?:]", about), about


def test_it_has_the_sections_of_the_site_and_no_other_page() -> None:
    assert len(LINES) == len(PAGES)
    sections = re.findall(r"^## (.+)$", FILES["llms.txt"], re.MULTILINE)
    assert sections == [
        "First page",
        *dict.fromkeys(page.section for page in PAGES if page.section),
    ]


def test_the_full_text_has_each_page_that_is_written_by_hand() -> None:
    full = FILES["llms-full.txt"]
    written = [page.path for page in PAGES if not page.path.startswith("api/")]
    assert len(written) > 30
    assert [path for path in written if FILES[path].strip() not in full] == []
    assert "## [Unreleased]" in full
    assert "--8<--" not in full
