from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from fanout.core.remote_error import ErrorWire
from fanout.errors import ServiceError, WriteTimeoutError
from fanout.kafka.cluster import Cluster
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.writing.producer_id import Idempotent, Transactional
from fanout.kafka.writing.write_options import ProducerOptions
from fanout.spark.sinks.kafka.worker_task import TaskOptions, TaskReport, read_report, task
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from fanout.kafka.security import Security
    from fanout.kafka.writing.producer_id import WriteMode


class Context:
    """A task's context in its second attempt."""

    def stageId(self) -> int:  # noqa: N802 - a name of Spark's
        return 3

    def partitionId(self) -> int:  # noqa: N802 - a name of Spark's
        return 1

    def attemptNumber(self) -> int:  # noqa: N802 - a name of Spark's
        return 1


def options(mode: WriteMode, asked: list[str]) -> TaskOptions:
    def security() -> Security:
        asked.append("security")
        return PLAINTEXT

    return TaskOptions(
        cluster=Cluster("127.0.0.1:1,elsewhere", security=security),
        mode=mode,
        producing=ProducerOptions(),
        topic="t",
    )


def test_another_attempt_of_a_task_writes_nothing_into_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskContext, "get", Context)
    asked: list[str] = []
    write = task(options(Transactional("id", Incarnation(1, 0)), asked))
    with pytest.raises(RuntimeError, match="attempt 1 of a task does not write"):
        next(write(iter(())))
    assert asked == []


def test_a_task_says_what_it_has_failed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", Context)
    left: Any = iter(["some rows"])
    (answer,) = task(options(Idempotent(), []))(left)
    report = read_report(answer["report"][0].as_py())
    assert (report.stage, report.task, report.rows) == (3, 1, 0)
    assert report.failure is not None
    assert report.failure.kind == "OptionError"
    assert "elsewhere would be used without TLS" in str(report.failure.error())
    assert next(left, None) is None, "Spark waits until all rows were read"


def test_a_failure_is_raised_as_what_it_was() -> None:
    assert isinstance(ErrorWire("WriteTimeoutError", "late").error(), WriteTimeoutError)
    unknown = ErrorWire("os.system", "x").error()
    assert (type(unknown), str(unknown)) == (ServiceError, "os.system: x")


@pytest.mark.parametrize("text", ["", "[]", '{"stage": -1, "task": 0}', '{"stage": "a"}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ServiceError, match="no report"):
        read_report(text)


def test_a_report_needs_no_more_than_its_task() -> None:
    assert read_report('{"stage": 1, "task": 0}') == TaskReport(1, 0)
