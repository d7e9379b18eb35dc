"""The example and the tables of docs/writing-to-kinesis.md."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from fanout.spark import KinesisSink
from fanout.spark.sinks.kinesis.sink import _TYPES

TEXT = (Path(__file__).parents[4] / "docs" / "writing-to-kinesis.md").read_text()
EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"

pytestmark = pytest.mark.spark


def rows(heading: str) -> dict[str, str]:
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): row[2].strip(' `"') for row in table}


def test_the_page_names_every_column_and_option() -> None:
    assert rows("Columns").keys() == _TYPES.keys()
    options = {field.name: field.default for field in fields(KinesisSink) if field.init}
    section = TEXT.split("\n## Options\n")[1].split("\n## ")[0]
    for name, default in rows("Options").items():
        assert default in {str(options[name]), "required"}
    assert options.keys() == set(re.findall(r"`(\w+)`", section.replace('"kinesis"', ""))) - {
        "False"
    }


def test_the_example_is_a_job_that_the_tests_run() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    job = (EXAMPLES / "kinesis_to_kinesis.py").read_text()
    for line in ('stream="orders-copy"', "deduplicate=True", "foreach_batch("):
        assert line in example
        assert line in job
    compile(example, "example", "exec")
