"""The diagrams of the pages as pictures, so that the site needs no script for them.

A page has a diagram as Mermaid text. `python -m tests.docs.diagrams` draws each with Mermaid itself
and keeps the picture in docs/images/diagrams, by a digest of the text; it needs the group
`diagrams` of pyproject.toml. The site has the picture in place of the text.
"""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any, Final

from tests.support.pages import DOCS, PAGES

__all__ = ("DIAGRAMS", "DIRECTORY", "digest", "fence")

DIRECTORY: Final = DOCS / "images" / "diagrams"
DIAGRAMS: Final = [
    (path.name, code)
    for path in PAGES
    for code in re.findall(r"```mermaid\n(.*?)```", path.read_text(), re.DOTALL)
]
# Pixels.
_READABLE: Final = 600
_SETTINGS: Final = {
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False},
    "sequence": {"mirrorActors": False},
    "fontFamily": "sans-serif",
}


def digest(code: str) -> str:
    """Return the name of a diagram's picture, without its ending."""
    return hashlib.sha256(code.strip().encode()).hexdigest()[:12]


def fence(source: str, *_given: Any, **_options: Any) -> str:
    """Return the picture of a diagram for a page of the site: `mkdocs.yml` names this function."""
    picture = DIRECTORY / f"{digest(source)}.svg"
    if not picture.exists():
        raise FileNotFoundError(
            f"a diagram has no picture: run python -m tests.docs.diagrams\n{source}"
        )
    return f'<div class="diagram">{picture.read_text()}</div>'


def _draw(code: str) -> str:
    """Return a picture whose colours are those of docs/stylesheets/diagrams.css."""
    import mermaidx  # type: ignore[import-not-found]  # noqa: PLC0415 - the site needs it not

    drawn: str = mermaidx.Diagram(code, config=_SETTINGS).svg()
    plain = re.sub(r"<style>.*?</style>|<symbol .*?</symbol>", "", drawn, flags=re.DOTALL)
    plain = re.sub(r"<defs>\s*</defs>", "", plain)
    plain = re.sub(r"max-width: ([\d.]+)px", _least_width, plain, count=1)
    return plain.replace("my-svg", f"diagram-{digest(code)}") + "\n"


def _least_width(found: re.Match[str]) -> str:
    """Let a phone scroll a wide picture, whose text would be too small."""
    return f"{found[0]}; min-width: {min(float(found[1]), _READABLE):.0f}px"


def main() -> None:
    """Draw the diagrams that have no picture, and delete pictures that no page has."""
    DIRECTORY.mkdir(exist_ok=True)
    needed = {f"{digest(code)}.svg": code for _, code in DIAGRAMS}
    for picture in DIRECTORY.iterdir():
        if picture.name not in needed:
            picture.unlink()
    for name, code in needed.items():
        if not (DIRECTORY / name).exists():
            (DIRECTORY / name).write_text(_draw(code))
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
