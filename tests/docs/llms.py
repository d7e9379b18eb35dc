"""`llms.txt` and `llms-full.txt`: the pages for programs that read documentation.

Their form: https://llmstxt.org. A link leads to the Markdown of a page, which the site has too. A
page of the API is made from docstrings, and has none.
"""

from __future__ import annotations

import importlib
import re
from itertools import groupby
from typing import TYPE_CHECKING

from tests.docs.command_line import command_line_page
from tests.support.pages import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.docs.navigation import Page

__all__ = ("files",)


def files(pages: Sequence[Page]) -> Iterator[tuple[str, str]]:
    """Yield the name in the site and the text of each file."""
    texts = {page.path: markdown(page.path) for page in pages if not page.path.startswith("api/")}
    yield from texts.items()
    yield "llms.txt", index(pages)
    yield "llms-full.txt", "\n\n".join(text.strip() for text in texts.values()) + "\n"


def index(pages: Sequence[Page]) -> str:
    """Return the name of each page, where it is, and what it is about."""
    lines = ["# fanout", "", f"> {about('index.md')}"]
    for section, members in groupby(pages, lambda page: page.section):
        lines += ["", f"## {section or 'First page'}", ""]
        lines += [f"- [{page.title}]({address(page.path)}): {about(page.path)}" for page in members]
    return "\n".join(lines) + "\n"


def address(path: str) -> str:
    return path.removesuffix(".md") + "/" if path.startswith("api/") else path


def about(path: str) -> str:
    """Return the first sentence of a page, without links and emphasis."""
    text = markdown(path)
    if documented := re.search(r"^::: (\S+)$", text, re.MULTILINE):
        text = importlib.import_module(documented[1]).__doc__ or ""
    paragraph = re.sub(r"^# .*\n+", "", text).split("\n\n", 1)[0]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split())).replace("**", "")
    return re.split(r"(?<=[.?!])\s", plain, maxsplit=1)[0]


def markdown(path: str) -> str:
    """Return the text of a page, with the files that it includes."""
    if path == "cli.md":  # `make site` writes it
        return command_line_page()
    return re.sub(
        r'^--8<-- "(.*)"$',
        lambda found: (ROOT / found[1]).read_text(),
        (DOCS / path).read_text(),
        flags=re.MULTILINE,
    )
