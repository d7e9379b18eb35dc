"""docs/reference.md: the columns of each source, and a link to each table of options."""

from __future__ import annotations

import re
from typing import Final

import pytest

from fanout.kafka.reading.columns import SCHEMA as KAFKA
from fanout.kafka.share.poll_columns import SCHEMA as SHARE
from fanout.kafka.shuffle.frames import SCHEMA as SHUFFLE
from fanout.kinesis.reading.decode import SCHEMA as KINESIS
from tests.support.pages import DOCS, PAGES, page

TEXT: Final = page("reference.md")
ROWS: Final = re.findall(r"^\| `(\w+)` \| (\w+) \|(.*)\|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("place", range(4))
def test_the_page_has_the_columns_of_a_source_in_their_order(place: int) -> None:
    schema = (KINESIS, KAFKA, SHARE, SHUFFLE)[place]
    marked = [(name, kind) for name, kind, marks in ROWS if marks.split("|")[place].strip()]
    assert marked == [(field.name, re.split(r"[<\[]", str(field.type))[0]) for field in schema]


def test_the_page_links_each_table_of_options() -> None:
    with_options = {
        path.name
        for path in PAGES
        if path.parent == DOCS
        and not path.name.startswith("from-")
        and re.search(r"^## Options$", path.read_text(), re.MULTILINE)
    }
    linked = set(re.findall(r"\(([\w-]+\.md)#options\)", TEXT))
    assert with_options - {"reference.md"} == linked
