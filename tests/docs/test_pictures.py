"""The pictures: diagrams that are text, and the path of data in two colour schemes."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tests.docs.diagrams import DIAGRAMS, DIRECTORY, digest, fence
from tests.support.pages import DOCS

NAMES = [f"{page}-{digest(code)}" for page, code in DIAGRAMS]


@pytest.mark.parametrize("code", [code for _, code in DIAGRAMS], ids=NAMES)
def test_a_diagram_has_the_picture_that_mermaid_has_drawn_of_it(code: str) -> None:
    """Another text has none: `python -m tests.docs.diagrams` draws it, or finds its mistake."""
    fenced = re.fullmatch('<div class="diagram">(.*)</div>', fence(code), re.DOTALL)
    assert fenced
    picture = ET.fromstring(fenced[1])  # noqa: S314 - the picture is ours
    shown = " ".join(" ".join(each.itertext()) for each in picture.findall(".//{*}text"))
    written = re.findall(r"\|([^|]+)\||[\[(]+([^\])]+)[\])]+|(?:\w: | as )(.+)", code)
    words = re.findall(r"[\w.]+", " ".join("".join(each) for each in written).replace("<br/>", " "))
    assert words
    assert [word for word in words if word not in shown] == []


def test_a_diagram_that_was_changed_is_not_shown_as_it_was() -> None:
    with pytest.raises(FileNotFoundError, match=r"run python -m tests\.docs\.diagrams"):
        fence("flowchart LR\n    A --> B")


def test_there_is_no_other_picture() -> None:
    named = {f"{digest(code)}.svg" for _, code in DIAGRAMS}
    assert {path.name for path in DIRECTORY.iterdir()} == named


def test_there_is_a_picture_of_each_thing_that_needs_one() -> None:
    pages = [page for page, _ in DIAGRAMS]
    assert {"exactness.md", "scaling.md", "shuffle.md", "writing-to-kafka.md"} <= set(pages)


def test_the_light_and_the_dark_picture_differ_by_colours_alone() -> None:
    light, dark = (
        (DOCS / "images" / f"data-path-{scheme}.svg").read_text() for scheme in ("light", "dark")
    )
    ET.fromstring(light)  # noqa: S314 - the picture is ours
    assert light != dark
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark)
