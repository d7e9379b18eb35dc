from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.kinesis.doctor.queue import diagnose_queue
from fanout.testing.faults import RefuseCall
from tests.support.kinesis.queue import QUEUE, STREAM, EmbeddedWork

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.core.findings import Finding


@pytest.fixture
def work(aws: None) -> Iterator[EmbeddedWork]:  # noqa: ARG001 - used for what it does
    with EmbeddedWork(
        DeadLetterConfiguration={"TargetType": "BUILT_IN", "MaxReceiveCount": 2}
    ) as w:
        yield w


async def examine(work: EmbeddedWork, **options: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in await diagnose_queue(work.source(**options))}


async def test_a_queue_that_can_be_read_has_nothing_to_be_done(work: EmbeddedWork) -> None:
    work.put(range(3))
    found = await examine(work)
    assert [*found] == [
        "kinesis:DescribeStreamSummary",
        "clock",
        "stream",
        "encryption",
        "kinesis:ListQueues",
        "kinesis:DescribeQueue",
        "queue",
        "kinesis:ReceiveQueueRecords",
        "kinesis:AcknowledgeQueueRecords",
        "kinesis:UpdateQueueRecordsVisibility",
        "visibility",
        "dead-letter target",
        "kinesis:ReceiveDeadLetterQueueRecords",
        "dead letters",
    ]
    not_fine = [each.check for each in found.values() if each.status != "ok"]
    assert not_fine == ["kinesis:ReceiveQueueRecords"]
    assert "is ACTIVE" in found["queue"].detail
    assert "received 2 times" in found["dead-letter target"].detail
    # No record was received.
    assert {record["ReceiveCount"] for record in work.receive()} == {1}


async def test_a_queue_that_is_not_there_is_a_problem(work: EmbeddedWork) -> None:
    for name in ("another", work.arn + "0"):
        found = await examine(work, queue=name)
        assert found["queue"].status == "problem"
        assert "has no queue" in found["queue"].detail


@pytest.mark.long
async def test_a_queue_of_another_stream_is_a_problem(work: EmbeddedWork) -> None:
    found = await examine(work, queue=work.create("payments", "others"))
    assert found["queue"].status == "problem"
    assert "payments" in found["queue"].detail


async def test_dead_letters_are_told_with_their_age_and_stay(work: EmbeddedWork) -> None:
    work.put(range(2))
    for _ in range(2):
        assert work.receive()
    found = await examine(work)
    assert found["dead letters"].status == "warning"
    assert found["dead letters"].detail.startswith("2 or more; the oldest of these arrived 0.0 h")
    assert len(work.receive(dead=True)) == 2


@pytest.mark.parametrize(
    ("configuration", "detail"),
    [
        ({"TargetType": "NONE"}, "none: a record"),
        ({"TargetType": "BUILT_IN", "MaxReceiveCount": 1}, "received once"),
    ],
    ids=str,
)
async def test_a_target_that_keeps_too_much_or_too_little_is_a_warning(
    work: EmbeddedWork, configuration: Any, detail: str
) -> None:
    attributes = {"DeadLetterConfiguration": configuration}
    work.call("UpdateQueue", QueueARN=work.arn, QueueAttributes=attributes)
    target = (await examine(work))["dead-letter target"]
    assert target.status == "warning"
    assert detail in target.detail


@pytest.mark.parametrize(
    "action",
    ["ListQueues", "DescribeQueue", "AcknowledgeQueueRecords", "ReceiveDeadLetterQueueRecords"],
)
async def test_what_is_not_allowed_is_a_problem(work: EmbeddedWork, action: str) -> None:
    work.server.inject(RefuseCall(action=action))
    found = await examine(work)
    denied = found[f"kinesis:{action}"]
    assert denied.status == "problem"
    assert denied.advice


async def test_a_receipt_that_is_malformed_tells_nothing(work: EmbeddedWork) -> None:
    work.server.inject(RefuseCall(action="AcknowledgeQueueRecords", code="ValidationException"))
    assert (await examine(work))["kinesis:AcknowledgeQueueRecords"].status == "unknown"


def test_the_command_checks_a_queue(work: EmbeddedWork, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in work.server.environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["doctor", STREAM, "--queue", QUEUE, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["healthy"]
    assert "dead letters" in {finding["check"] for finding in report["findings"]}
    result = CliRunner().invoke(app, ["doctor", STREAM, "--queue", "another"])
    assert result.exit_code == 1


@pytest.mark.parametrize("arguments", [["--queue", "q"], ["s", "c", "--queue", "q"]], ids=str)
def test_a_queue_needs_a_stream_and_no_consumer(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert "--queue needs the name of one stream" in result.output
