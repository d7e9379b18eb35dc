"""The pages keep the house style: plain English, in short sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.pages import PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHECKED: Final = (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
# A longer sentence has a second fact in it; write two, or a list.
MAX_WORDS: Final = 35
# What to avoid, and what to write.
FORBIDDEN: Final = {
    r"e\.g\.": "for example",
    r"i\.e\.": "that is",
    r"etc\.": "all of them, or an example",
    r"via": "by, over or through",
    r"simply|obviously|of course": "nothing: leave it out",
    r"(?<!has )(?<!had )(?<!have )just(?! before)": "only, or nothing",
    r"eas(?:y|ier|iest|ily)": "what it takes",
    r"whoever": "who it is",
    r"loop of your own": "your loop",
    r"what becomes of": "what happens to",
    r"(?:is|are) (?:said|told) in": "`see`, and the place",
    # Only people do these; a program needs, has, stores or deletes.
    r"(?<!who )(?:wants|knows|knew|remembers|remembered|forgets|forgot|thinks|believes)": (
        "needs, has, stores, deletes or takes for"
    ),
}


def prose(text: str) -> str:
    """Return a page without blocks of code, pictures, comments, HTML and the targets of links."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|<[^>\n]*>|!\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]+`", "`code`", text)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and of items in lists."""
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose(text), flags=re.MULTILINE):
        if not block.lstrip().startswith(("|", "#")):
            yield from re.split(r"(?<=[.?!])[*_)]*\s+", " ".join(block.split()))


def complaints(text: str) -> list[str]:
    """Return what is against the style in a page."""
    found = [
        f"{match.group()!r}: write {instead}"
        for phrase, instead in FORBIDDEN.items()
        for match in re.finditer(rf"\b(?:{phrase})(?!\w)", prose(text), re.IGNORECASE)
    ]
    long = [each for each in sentences(text) if len(each.split()) > MAX_WORDS]
    return found + [f"{len(each.split())} words, at most {MAX_WORDS}: {each}" for each in long]


@pytest.mark.long
@pytest.mark.parametrize("page", CHECKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_in_plain_english(page: Path) -> None:
    assert complaints(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "It is *simply*\nfaster.",
        "Files, e.g. of Parquet.",
        "| the broker knows it | x |",
        "- " + "word " * 36,
        "A sentence. **" + "word " * 36 + "**",
    ],
)
def test_what_is_against_the_style_is_found(text: str) -> None:
    assert len(complaints(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "```python\nsimply = 1\n```",
        "It has just started, `via=1`, [here](easy.md).",
        "A person who knows it.",
        "word " * 20 + "end.\n\n" + "word " * 20,
        "- " + "word " * 20 + "\n- " + "word " * 20,
    ],
)
def test_what_is_not_against_the_style_passes(text: str) -> None:
    assert complaints(text) == []
