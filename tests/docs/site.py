"""Build the documentation as a site and check it: `make site`.

Zensical checks the links of pages and the anchors that they lead to. This adds what it does not
know: the page with the options of the command line, `llms.txt`, and whether each public name and
each page is on the site.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Final

import typer.main
import yaml
from typer.cli import get_docs_for_click

from fanout.cli.app import app
from tests.pages import DOCS, PAGES, ROOT
from tests.public_interface import public_names

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE: Final = ROOT / "site"
ADDRESS: Final = "https://github.com/fanout-streams/fanout/blob/main/docs/"


def main() -> int:
    write_commands()
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=False
    )
    if done.returncode:
        return done.returncode
    (SITE / "llms.txt").write_text(llms_text())
    problems = [*missing_pages(), *undocumented_names()]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return min(len(problems), 1)


def write_commands() -> None:
    """Write the page with all commands and their options, from what typer knows."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=command, ctx=typer.Context(command), name="fanout", title="Options of commands"
    )
    (DOCS / "cli.md").write_text(text)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads `mkdocs.yml`, whose names of Python objects do not matter here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> Iterator[tuple[str, str]]:
    """Yield the title and the file of each page, in the order of the site."""

    def walk(entries: list[dict[str, object]]) -> Iterator[tuple[str, str]]:
        for entry in entries:
            for title, found in entry.items():
                if isinstance(found, list):
                    yield from walk(found)
                else:
                    yield title, str(found)

    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)  # noqa: S506 - a safe one
    yield from walk(config["nav"])


def missing_pages() -> Iterator[str]:
    named = {page for _, page in navigation()}
    for path in PAGES:
        if path.is_relative_to(DOCS) and str(path.relative_to(DOCS)) not in named:
            yield f"docs/{path.relative_to(DOCS)} is not in the nav of mkdocs.yml"


def undocumented_names() -> Iterator[str]:
    inventory = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    yield from (f"{name} is on no page of the API" for name in public_names() if name not in known)


def llms_text() -> str:
    """Return the pages and what each is about, for programs that read documentation.

    Its form: https://llmstxt.org
    """
    lines = ["# fanout", "", f"> {paragraph('index.md')}", "", "## Pages", ""]
    for title, name in navigation():
        link = f"- [{title}]({ADDRESS}{name})"
        made = name.startswith("api/") or name in {"cli.md", "changelog.md"}
        lines.append(link if made else f"{link}: {paragraph(name)}")
    return "\n".join(lines) + "\n"


def paragraph(name: str) -> str:
    """Return the first paragraph of a page as one line, without links."""
    text = re.sub(r"^# .*\n+", "", (DOCS / name).read_text())
    first = text.split("\n\n", 1)[0].replace("\n", " ")
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)


if __name__ == "__main__":
    sys.exit(main())
