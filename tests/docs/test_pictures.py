"""The pictures: diagrams that are text, and the path of data in two colour schemes."""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from tests.pages import DOCS, PAGES

DIAGRAMS: Final = [
    (path.name, code)
    for path in PAGES
    for code in re.findall(r"```mermaid\n(.*?)```", path.read_text(), re.DOTALL)
]
# The part of Mermaid's language that the pages use. https://mermaid.js.org/syntax/
NODE: Final = r"\w+(?:\[[^\][]+\]|\[\([^)]+\)\])?"
ARROW: Final = r"(?:-->|-\.->)(?:\|[^|]+\|)?"
SYNTAX: Final = {
    "flowchart LR": (rf"{NODE} {ARROW} {NODE}",),
    "sequenceDiagram": (
        r"participant \w+ as [^;#]+",
        r"\w+->>\w+: [^;#]+",
        r"Note over \w+(?:,\w+)?: [^;#]+",
    ),
}


@pytest.mark.parametrize(("page", "code"), DIAGRAMS, ids=[page for page, _ in DIAGRAMS])
def test_a_diagram_is_of_a_known_kind_and_has_no_unknown_line(page: str, code: str) -> None:
    kind, *lines = code.splitlines()
    for line in lines:
        assert any(re.fullmatch(f"    {form}", line) for form in SYNTAX[kind]), (page, line)
    if kind == "sequenceDiagram":
        named = set(re.findall(r"participant (\w+)", code))
        used = set(re.findall(r"^    (\w+)->>(\w+):", code, re.MULTILINE))
        assert {each for pair in used for each in pair} == named


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
