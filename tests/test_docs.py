"""What the page about reliability says is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.provers.__main__ import app
from tests.provers.planted.kafka_bugs import KAFKA_BUGS
from tests.provers.planted.kinesis_bugs import KINESIS_BUGS
from tests.provers.planted.shuffle_bugs import SHUFFLE_BUGS
from tests.provers.planted.spark_bugs import SPARK_BUGS
from tests.provers.simulation.kafka.faults import KafkaFaultKind
from tests.provers.simulation.kafka.moments import KafkaSometimes
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.moments.moments import KinesisSometimes

PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
README = PAGE.parent.parent / "README.md"
TEXT = PAGE.read_text()
# Lines are broken anywhere between two words.
WORDS = " ".join(TEXT.split())


@pytest.mark.parametrize(
    ("sentence", "count"),
    [
        ("There are {} kinds of faults", len(KinesisFaultKind)),
        ("the suite also plants {} bugs", len(KINESIS_BUGS)),
        ("And {} rare coincidences are counted", len(KinesisSometimes)),
        ("{} bugs are planted there", len(SPARK_BUGS)),
        ("There are {} kinds of faults of the cluster", len(KafkaFaultKind)),
        ("Here {} bugs are planted", len(KAFKA_BUGS)),
        ("and {} coincidences are required", len(KafkaSometimes)),
        ("{} bugs are planted for these", len(SHUFFLE_BUGS)),
    ],
)
def test_the_page_counts_what_there_is(sentence: str, count: int) -> None:
    assert sentence.format(count) in WORDS


def test_the_readme_counts_the_kinds_of_faults() -> None:
    assert f"with {len(KinesisFaultKind)} kinds of faults" in " ".join(README.read_text().split())


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((\S+?)\)", TEXT)

    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_the_commands_of_the_page_work() -> None:
    commands = re.findall(r"^\$ \.venv/bin/python -m tests\.provers (.*)$", TEXT, re.MULTILINE)

    assert len(commands) == 3
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True))
        assert result.exit_code == 0, result.output
