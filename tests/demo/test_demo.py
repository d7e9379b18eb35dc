"""The command as a user runs it, from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from fanout.errors import SetupError
from tests.jars.fetch import s3a_set
from tests.support.process_list import running_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.alone

_MARK = "FANOUT_TEST_RUN"


@contextmanager
def demo(temporary: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `fanout demo`; yield it with a mark that every process it starts inherits."""
    mark = uuid.uuid4().hex
    command = [str(Path(sys.executable).with_name("fanout")), "demo", *arguments]
    environment = os.environ | {_MARK: mark, "TMPDIR": str(temporary)}
    with subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()


def report_of(temporary: Path, *arguments: str) -> dict[str, Any]:
    """Run `fanout demo` to its end, check that it leaves nothing behind, and return its report."""
    with demo(temporary, *arguments) as (process, mark):
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert errors == ""
        assert running_with(mark) == {}
    assert list(temporary.iterdir()) == []
    report: dict[str, Any] = json.loads(output)
    return report


def assert_has(report: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Check some fields of a report; a failure shows those that differ."""
    assert {name: report[name] for name in wanted} == wanted


@pytest.mark.prove
@pytest.mark.spark
def test_nothing_is_lost_although_the_driver_is_killed(tmp_path: Path) -> None:
    result = report_of(tmp_path, "--records", "4000", "--kill", "--json")
    assert_has(
        result,
        {
            "source": "kinesis",
            "records_sent": 4000,
            "records_read": 4000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": 0,
            "splits_seen": 10,
            "restarts": 1,
            "faults": {"CutConnection": 2, "RaiseInStream": 1, "Stall": 1},
        },
    )
    assert len(result["replayed"]) == 1
    # A driver that is killed right after a fault has not reported how its subscription ended.
    assert result["resubscriptions"] > 0
    assert len(result["second_reshard"]["ended"]) == len(result["second_reshard"]["born"]) == 3
    assert 0 < result["second_generation"] < 4000


@pytest.mark.prove
@pytest.mark.spark
def test_nothing_is_lost_on_s3_although_the_driver_is_killed(
    tmp_path: Path, jars: Callable[[str], list[Path]]
) -> None:
    try:
        jars(s3a_set())
    except SetupError as error:  # for the oldest pyspark
        pytest.skip(str(error))
    arguments = ("--storage", "s3", "--records", "2000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    assert_has(
        result,
        {
            "source": "kinesis",
            "records_sent": 2000,
            "records_read": 2000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": 0,
            "splits_seen": 10,
            "restarts": 1,
            "faults": {"CutConnection": 2, "RaiseInStream": 1, "Stall": 1},
        },
    )
    assert len(result["replayed"]) == 1
    assert 0 < result["second_generation"] < 2000


@pytest.mark.prove
@pytest.mark.spark
def test_nothing_is_lost_or_repeated_by_a_queue_whose_reader_is_killed(tmp_path: Path) -> None:
    arguments = ("--source", "kinesis-queue", "--records", "2000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    assert_has(
        result,
        {
            "source": "kinesis-queue",
            "records_sent": 2000,
            "records_read": 2000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": None,
            "second_generation": None,
            "splits_seen": 4,
            "restarts": 1,
            "second_reshard": None,
        },
    )
    assert len(result["replayed"]) == 1
    assert set(result["faults"]) == {"GoAwayAtCall", "RefuseCall"}
    # Both may be 0: a driver that is killed between two calls holds nothing.
    assert 0 <= result["redelivered"] < 2000
    assert 0 <= result["left_out"] < 2000


@pytest.mark.prove
@pytest.mark.usefixtures("_kafka_jars")
def test_nothing_is_lost_or_repeated_by_a_share_group_whose_members_are_killed(
    tmp_path: Path,
) -> None:
    arguments = ("--source", "kafka-share", "--records", "2000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    assert_has(
        result,
        {
            "source": "kafka-share",
            "records_sent": 2000,
            "records_read": 2000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": None,
            "splits_seen": 4,
            "restarts": 1,
            "faults": {"AbortTransaction": 2, "KillBroker": 1},
        },
    )
    assert len(result["replayed"]) == 1
    assert 0 < result["second_generation"] < 2000


@pytest.mark.prove
@pytest.mark.usefixtures("_kafka_jars")
def test_nothing_is_lost_in_a_shuffle_although_both_of_its_sides_are_killed(tmp_path: Path) -> None:
    arguments = ("--source", "kafka", "--shuffle", "--records", "2000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    assert_has(
        result,
        {
            "source": "kafka",
            "records_sent": 2000,
            "records_read": 2000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": 0,
            "watermark_violations": 0,
            "splits_seen": 12,
            "restarts": 2,
            "faults": {"AbortTransaction": 2, "KillBroker": 1},
        },
    )
    assert len(result["replayed"]) == 2
    assert result["resubscriptions"] > 0
    assert result["second_reshard"]["ended"] == []
    assert len(result["second_reshard"]["born"]) == 2
    assert 1000 < result["watermark_passed"] < 2000
    assert 0 < result["second_generation"] < 2000


@pytest.mark.prove
@pytest.mark.spark
def test_nothing_is_lost_although_landers_and_the_driver_are_killed(tmp_path: Path) -> None:
    arguments = ("--landers", "2", "--records", "4000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    assert_has(
        result,
        {
            "source": "kinesis",
            "records_sent": 4000,
            "records_read": 4000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": 0,
            "restarts": 1,
            "landers_killed": 2,  # one of each driver
            "faults": {"CutConnection": 2, "RaiseInStream": 1, "Stall": 1},
        },
    )
    assert len(result["replayed"]) == 1
    assert 0 < result["second_generation"] < 4000


@pytest.mark.prove
@pytest.mark.usefixtures("_kafka_jars")
def test_nothing_of_kafka_is_lost_although_landers_and_the_driver_are_killed(
    tmp_path: Path,
) -> None:
    arguments = ("--source", "kafka", "--landers", "2", "--records", "4000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    assert_has(
        result,
        {
            "source": "kafka",
            "records_sent": 4000,
            "records_read": 4000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": 0,
            "restarts": 1,
            "landers_killed": 2,
            "faults": {"AbortTransaction": 2, "KillBroker": 1},
        },
    )
    assert len(result["replayed"]) == 1
    assert 0 < result["second_generation"] < 4000


@pytest.mark.prove
@pytest.mark.skipif(pyspark.__version__ < "4", reason="there are no Python data sources")
@pytest.mark.usefixtures("_kafka_jars")
@pytest.mark.timeout(300)  # four JVMs start in it, and Python workers
@pytest.mark.parametrize("source", ["kinesis", "kafka"])
def test_nothing_of_a_dataframe_is_lost_although_its_processes_are_killed(
    tmp_path: Path, source: str
) -> None:
    arguments = ("--dataframe", "--source", source, "--records", "4000", "--kill", "--json")
    result = report_of(tmp_path, *arguments)
    faults = {
        "kinesis": {"CutConnection": 2, "RaiseInStream": 1, "Stall": 1},
        "kafka": {"AbortTransaction": 2, "KillBroker": 1},
    }
    assert_has(
        result,
        {
            "source": source,
            "records_sent": 4000,
            "records_read": 4000,
            "lost": 0,
            "duplicated": 0,
            "altered": 0,
            "out_of_order": 0,
            "restarts": 1,
            "planners_killed": 2,  # one of each driver
            "faults": faults[source],
        },
    )
    assert result["workers_killed"] >= 2
    assert len(set(result["replayed"])) == 1
    assert 0 < result["second_generation"] < 4000


def test_a_demo_that_is_ended_as_spark_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as (process, mark):
        while not any("java" in command for command in running_with(mark).values()):
            assert process.poll() is None
            time.sleep(0.05)  # the demo does not report that Spark starts
        ended(process, mark, signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("_kafka_jars")
def test_an_interrupted_demo_of_kafka_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--source", "kafka") as (process, mark):
        assert process.stdout is not None
        assert "the query runs" in process.stdout.readline()
        assert any("java" in command for command in running_with(mark).values())
        ended(process, mark, signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


def ended(process: subprocess.Popen[str], mark: str, number: signal.Signals) -> None:
    """End a demo by a signal, and check that all of its processes have gone."""
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert running_with(mark) == {}
