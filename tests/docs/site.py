"""Build the documentation as a site and check it: `make site`.

Zensical checks the links of pages and the anchors that they lead to. This adds what it does not
know: the page with the options of the command line, `llms.txt`, and whether each public name and
each page is on the site.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Final

from tests.docs import llms
from tests.docs.command_line import command_line_page
from tests.docs.navigation import navigation
from tests.docs.versions import write_versions
from tests.public_interface import public_names
from tests.support.pages import DOCS, PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SITE: Final = ROOT / "site"


def main(version: str = "") -> int:
    """Build the only version in site/, or a version in a directory of its name there."""
    site = SITE / version
    variables = {"FANOUT_SITE_DIR": str(site), "FANOUT_SITE_VERSIONS": "mike"} if version else {}
    (DOCS / "cli.md").write_text(command_line_page())
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=ROOT,
        check=False,
        env=os.environ | variables,
    )
    if done.returncode:
        return done.returncode
    for name, text in llms.files(navigation()):
        (site / name).write_text(text)
    if version:
        write_versions(SITE)
    problems = [*missing_pages(), *undocumented_names(site)]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return min(len(problems), 1)


def missing_pages() -> Iterator[str]:
    named = {page.path for page in navigation()}
    for path in PAGES:
        if path.is_relative_to(DOCS) and str(path.relative_to(DOCS)) not in named:
            yield f"docs/{path.relative_to(DOCS)} is not in the nav of mkdocs.yml"


def undocumented_names(site: Path) -> Iterator[str]:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    yield from (f"{name} is on no page of the API" for name in public_names() if name not in known)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
