"""The examples and the table of options of docs/kinesis-writer.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanout.kinesis import KinesisSource, open_writer, read_deduplication_ids
from fanout.kinesis.deduplication import MAGIC
from tests.support.kinesis.writers import read
from tests.support.pages import defined_by

if TYPE_CHECKING:
    import pytest

    from tests.support.kinesis.reading import Stream

TEXT = (Path(__file__).parents[3] / "docs" / "kinesis-writer.md").read_text()
WRITE, DECODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def test_the_first_example_writes(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stream.server.environment.items():
        monkeypatch.setenv(name, value)
    await defined_by(WRITE)["main"]()
    assert await read(stream) == {"ann": [b"1 pear", b"3 nuts"], "bob": [b"2 figs"]}


def test_the_second_example_reads_ids() -> None:
    names: dict[str, Any] = {}
    exec(DECODE, names)  # noqa: S102 - the page is ours
    source = names["source"]
    assert isinstance(source, KinesisSource)
    assert source.decode is read_deduplication_ids
    assert source.schema.names[-1] == "deduplicationId"
    assert f"`{MAGIC.hex(' ')}`" in TEXT


def test_the_page_has_the_options_with_their_defaults() -> None:
    section = TEXT.split("\n## Options\n")[1].split("\n## ")[0]
    table = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    documented = {row[1].strip(" `"): row[2].strip(" `") for row in table}
    options = {
        name: parameter.default
        for name, parameter in inspect.signature(open_writer).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for name, default in documented.items():
        assert default in {str(options[name]), f"{options[name] or 0:g}"}
    for name in options.keys() - documented.keys():
        assert f"`{name}`" in section
