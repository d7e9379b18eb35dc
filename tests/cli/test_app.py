from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.demo.options import DemoFailedError, DemoOptions, ServiceName
from fanout.demo.plan import ActionResult, SparkProcess
from fanout.demo.report import DemoReport, RunProgress
from fanout.demo.verification import Proof
from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "100")
    before = signal.getsignal(signal.SIGTERM)
    yield CliRunner()
    # Only the process of the command line sets handlers of signals.
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_output_that_takes_no_more_is_one_sentence() -> None:
    command = [sys.executable, "-c", "from fanout.cli import main; main()", "consumers", "--help"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own code
    assert done.returncode == 2
    assert done.stderr == "fanout: the output cannot be written: No space left on device\n"


def report(
    *,
    lost: int = 0,
    second_generation: int | None = None,
    source: ServiceName = ServiceName.KINESIS,
    second_reshard: ActionResult | None = None,
    watermark_violations: int | None = None,
    landers_killed: int | None = None,
    processes_killed: dict[SparkProcess, int] | None = None,
) -> DemoReport:
    progress = RunProgress(Console(quiet=True), 9)
    progress.splits = {str(number) for number in range(7)}
    if processes_killed is None:
        progress.resubscriptions.update({"RemoteError": 1, "SubscriptionSilentError": 2})
    progress.processes_killed.update(processes_killed or {})
    progress.processes_killed[SparkProcess.LANDER] += landers_killed or 0
    return DemoReport(
        options=DemoOptions(
            source=source,
            seed=1,
            landers=0 if landers_killed is None else 2,
            dataframe=processes_killed is not None,
        ),
        proof=Proof(
            records_sent=9,
            records_read=9 - lost,
            batches=2,
            lost=lost,
            duplicated=0,
            altered=0,
            out_of_order=0,
            second_generation=second_generation,
            watermark_violations=watermark_violations,
        ),
        progress=progress,
        faults={"Stall": 1},
        second_reshard=second_reshard,
        seconds=1.25,
    )


def test_help_lists_the_commands(run: CliRunner) -> None:
    assert "demo" in run.invoke(app, ["--help"]).stdout


def test_help_names_every_option_of_the_demo(run: CliRunner) -> None:
    text = run.invoke(app, ["demo", "--help"]).stdout
    assert [
        option
        for option in (
            "--source",
            "--records",
            "--shards",
            "--seed",
            "--kill",
            "--shuffle",
            "--storage",
            "--landers",
            "--dataframe",
            "--json",
        )
        if option not in text
    ] == []


def test_no_help_imports_anything_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from fanout.cli.app import app\n"
        "for command in ['demo'], ['consumers', 'gc'], ['doctor'], ['tail']:\n"
        "    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0, command\n"
        "heavy = {'pyspark', 'aioboto3', 'aiokafka', 'botocore', 'confluent_kafka', 'moto'}\n"
        "heavy |= {'pyarrow', 'multiprocessing'}\n"
        "print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout == "set()\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fanout", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"fanout {version('fanout-streams')}\n"


def test_the_version_is_that_of_the_distribution(run: CliRunner) -> None:
    assert run.invoke(app, ["--version"]).stdout == f"fanout {version('fanout-streams')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--source", "sqs"],
        ["--storage", "gcs"],
        ["--records", "0"],
        ["--shards", "0"],
        ["--landers", "9"],
        ["--seed", "x"],
        ["--fast"],
        ["--records"],
    ],
    ids=" ".join,
)
def test_a_bad_option_exits_with_2(run: CliRunner, arguments: list[str]) -> None:
    result = run.invoke(app, ["demo", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert arguments[0] in result.stderr


@pytest.mark.parametrize("source", ServiceName)
def test_without_java_one_sentence_says_so(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: ServiceName
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run.invoke(app, ["demo", "--source", source])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"fanout demo: JAVA_HOME is {tmp_path}, which has no bin/java; "
        f"install Java 17 or newer and set JAVA_HOME\n"
    )


def test_a_proof_that_holds_exits_with_0(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: report())
    result = run.invoke(app, ["demo"])
    assert result.exit_code == 0
    assert "compared by another process" in result.stdout


@pytest.mark.parametrize(("killed", "shown"), [(None, False), (0, True), (2, True)])
def test_landers_that_were_killed_are_counted(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, killed: int | None, *, shown: bool
) -> None:
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: report(landers_killed=killed))
    text = run.invoke(app, ["demo"]).stdout
    assert bool(re.search(rf"landers killed +│ +{killed} │", text)) is shown
    result = json.loads(run.invoke(app, ["demo", "--json"]).stdout)
    assert result["landers_killed"] == killed


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--source", "kafka-share"], "a share group locks records"),
        (
            ["--source", "kafka", "--shuffle"],
            "--landers 2 do not read the shuffle of the demo; leave --shuffle out",
        ),
        (["--storage", "s3"], "--landers 2 need --storage disk"),
    ],
    ids=str,
)
def test_what_landers_do_not_read_is_refused(
    run: CliRunner, arguments: list[str], why: str
) -> None:
    result = run.invoke(app, ["demo", "--landers", "2", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


@pytest.mark.parametrize("killed", [0, 2])
def test_processes_of_a_dataframe_that_were_killed_are_counted(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    done = report(processes_killed={SparkProcess.PLANNER: killed} if killed else {})
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: done)
    text = run.invoke(app, ["demo"]).stdout
    assert re.search(rf"planners killed +│ +{killed} │", text)
    assert re.search(r"workers killed +│ +0 │", text)
    result = json.loads(run.invoke(app, ["demo", "--json"]).stdout)
    assert (result["planners_killed"], result["workers_killed"]) == (killed, 0)
    assert result["resubscriptions"] is None  # its planner does not report them


def test_without_a_dataframe_no_kills_of_its_processes_are_reported(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: report())
    for arguments in (["demo"], ["demo", "--json"]):
        text = run.invoke(app, arguments).stdout
        assert "planners" not in text
        assert "workers" not in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--landers", "2"],
            "--dataframe of the demo lands in one process of the query; leave --landers out",
        ),
        (
            ["--source", "kafka-share"],
            "--dataframe cannot read --source kafka-share: a share group cannot be landed",
        ),
        (
            ["--source", "kafka", "--shuffle"],
            "--dataframe does not read the shuffle of the demo; leave --shuffle out",
        ),
        (["--storage", "s3"], "--dataframe needs --storage disk"),
    ],
    ids=str,
)
def test_what_a_dataframe_does_not_read_is_refused(
    run: CliRunner, arguments: list[str], sentence: str
) -> None:
    result = run.invoke(app, ["demo", "--dataframe", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"fanout demo: {sentence}\n"


def test_a_dataframe_on_pyspark_3_is_refused(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fanout.demo.options.find_spec",
        lambda name: None if name == "pyspark.sql.datasource" else object(),
    )
    result = run.invoke(app, ["demo", "--dataframe"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "fanout demo: --dataframe needs pyspark 4.0 or newer, and an older one is installed; "
        "leave --dataframe out\n"
    )


def test_a_proof_that_fails_exits_with_1(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: report(lost=1))
    assert run.invoke(app, ["demo"]).exit_code == 1


@pytest.mark.parametrize(("late", "code", "mark"), [(0, 1, "✗"), (12, 0, "✓")])
def test_a_restart_must_have_delivered_what_it_never_saw_before(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, late: int, code: int, mark: str
) -> None:
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: report(second_generation=late))
    result = run.invoke(app, ["demo"])
    assert result.exit_code == code
    assert re.search(
        rf"of shards created while the driver was down +│ +{late} │ {mark}", result.stdout
    )


def test_partitions_of_kafka_are_called_so_and_none_has_ended(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = report(
        source=ServiceName.KAFKA,
        second_generation=12,
        second_reshard=ActionResult("add partitions", born=("orders-6", "orders-7")),
    )
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: grown)
    reported = run.invoke(app, ["demo", "--source", "kafka"]).stdout
    assert re.search(r"partitions created while it was down +│ +2 │", reported)
    assert "of partitions created while the driver was down" in reported
    assert "shard" not in reported
    assert "ended" not in reported


def test_a_watermark_that_is_violated_is_not_proven(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for violations, code in ((0, 0), (3, 1)):
        found = report(watermark_violations=violations)
        monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_, found=found: found)
        result = run.invoke(app, ["demo", "--source", "kafka", "--shuffle"])
        assert result.exit_code == code
        assert re.search(rf"watermark violations +│ +{violations} │", result.stdout)


def test_a_shuffle_without_kafka_is_refused(run: CliRunner) -> None:
    result = run.invoke(app, ["demo", "--shuffle"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "fanout demo: --shuffle needs a topic of Kafka; pass --source kafka\n"


def test_s3_with_a_share_group_is_refused(run: CliRunner) -> None:
    result = run.invoke(app, ["demo", "--storage", "s3", "--source", "kafka-share"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "fanout demo: --storage s3 is for --source kinesis and --source kafka without a shuffle\n"
    )


@pytest.mark.parametrize(
    ("hadoop", "sentence"),
    [
        ("3.3.4", "S3A needs a pyspark with Hadoop 3.5.0, such as 4.3; the one that is installed"),
        ("3.5.0", "the jars of s3a-hadoop-3.5.0 are not to be had: check the network"),
    ],
)
def test_without_the_jars_of_s3a_one_sentence_says_so(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hadoop: str, sentence: str
) -> None:
    (tmp_path / f"hadoop-client-api-{hadoop}.jar").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fanout.testing.s3_clients.pyspark_jars", lambda: tmp_path)
    monkeypatch.setattr("fanout.testing.jars.java_and_ivy", lambda: ("false", "ivy.jar"))
    result = run.invoke(app, ["demo", "--storage", "s3"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"fanout demo: {sentence}")


def test_without_the_jars_of_kafka_one_sentence_says_so(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SetupError("Kafka 4.3.1 is not to be had: check version and network")

    monkeypatch.setattr("fanout.testing.kafka.cluster.kafka_jars", refuse)
    result = run.invoke(app, ["demo", "--source", "kafka"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "fanout demo: Kafka 4.3.1 is not to be had: check version and network\n"
    )


def test_a_demo_that_fails_exits_with_1_and_says_why(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> DemoReport:
        raise DemoFailedError("nothing happened for 60 s")

    monkeypatch.setattr("fanout.demo.run.run_demo", fail)
    result = run.invoke(app, ["demo"])
    assert (result.exit_code, result.stderr) == (1, "fanout demo: nothing happened for 60 s\n")


def test_json_is_one_flat_object_and_nothing_else(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.demo.run.run_demo", lambda *_: report())
    assert run.invoke(app, ["demo", "--json"]).stdout == (
        '{"source":"kinesis","seed":1,"nodes":1,"records_sent":9,"records_read":9,"batches":2,"lost":0,'
        '"duplicated":0,"altered":0,"out_of_order":0,"second_generation":null,'
        '"watermark_violations":null,"watermark_passed":null,"redelivered":null,"resubscriptions":3,"splits_seen":7,"left_out":null,"faults":{"Stall":1},"restarts":0,"landers_killed":null,"replayed":[],'
        '"second_reshard":null,"seconds":1.2}\n'
    )
