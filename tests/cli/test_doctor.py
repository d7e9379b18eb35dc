from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.doctor import _place_of_landers
from fanout.core.checkpoint import Checkpoint
from fanout.core.opening import resolve_start
from fanout.kinesis import KinesisSource
from fanout.testing.faults import RefuseCall

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from fanout.testing.kinesis.server import KinesisServer

CANARY = "canary-7Zq1-secret"
ORDERS = ["doctor", "orders", "orders-etl"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def answer(result: Result) -> Any:
    return json.loads(result.stdout)


def statuses(result: Result) -> dict[str, str]:
    return {each["check"]: each["status"] for each in answer(result)["findings"]}


@pytest.fixture
def server(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> KinesisServer:
    """An embedded Kinesis with the stream `orders` and its consumer `orders-etl`."""
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    kinesis_server.create_stream("orders", shards=2)
    assert run("consumers", "register", "orders", "orders-etl").exit_code == 0
    return kinesis_server


@pytest.mark.usefixtures("server")
def test_a_table_tells_people_what_was_found() -> None:
    result = run(*ORDERS)
    assert result.exit_code == 0, result.output
    assert "orders-etl is ACTIVE" in result.stdout
    assert "→ if there is none, or a moment does not matter, --subscribe" in result.stdout
    assert result.stdout.endswith("16 ok, 1 unknown\n")


@pytest.mark.usefixtures("server")
def test_json_tells_programs_the_same() -> None:
    result = run(*ORDERS, "--json")
    assert result.exit_code == 0
    reported = answer(result)
    assert (reported["stream"], reported["healthy"], len(reported["findings"])) == (
        "orders",
        True,
        17,
    )
    assert reported["findings"][0] == {
        "check": "credentials",
        "status": "ok",
        "detail": "from env, for us-east-1; the service accepts them",
        "advice": "",
    }


@pytest.mark.usefixtures("server")
def test_a_warning_exits_with_0() -> None:
    result = run("doctor", "orders", "another", "--json")
    assert statuses(result)["consumer"] == "warning"
    assert result.exit_code == 0


def test_a_problem_exits_with_1(server: KinesisServer) -> None:
    server.inject(RefuseCall(action="ListShards", times=9))
    result = run(*ORDERS, "--json")
    assert (result.exit_code, answer(result)["healthy"]) == (1, False)
    assert statuses(result)["kinesis:ListShards"] == "problem"


def test_a_message_of_the_service_is_no_markup(server: KinesisServer) -> None:
    server.inject(RefuseCall(action="ListShards", message="not [/you]", times=9))
    assert "not [/you]" in run(*ORDERS).stdout


def test_a_subscription_is_tried_where_that_is_asked_for(server: KinesisServer) -> None:
    run(*ORDERS)
    assert server.statistics().subscribe_calls == {}
    assert statuses(run(*ORDERS, "--subscribe", "--json"))["kinesis:SubscribeToShard"] == "ok"
    assert sum(server.statistics().subscribe_calls.values()) == 1


@pytest.mark.usefixtures("server")
def test_without_a_consumer_polling_is_checked() -> None:
    found = statuses(run("doctor", "orders", "--json"))
    assert found["kinesis:GetRecords"] == "ok"
    assert "consumer" not in found


def test_several_streams_are_checked_one_after_the_other(
    server: KinesisServer, tmp_path: Path
) -> None:
    server.create_stream("payments")
    source = KinesisSource(stream=["orders"], mode="polling", start="TRIM_HORIZON")
    path = tmp_path / "positions.json"
    path.write_text(asyncio.run(resolve_start(source)))
    result = run("doctor", "orders,payments", "--checkpoint", str(path), "--json")
    found = statuses(result)
    assert (result.exit_code, answer(result)["stream"]) == (0, "orders,payments")
    for name in ("orders", "payments"):
        assert found[f"{name}: kinesis:GetRecords"] == "ok"
        assert found[f"{name}: checkpoint"] == "ok"
    details = {each["check"]: each["detail"] for each in answer(result)["findings"]}
    assert details["orders: checkpoint"].startswith("2 shards known")
    assert details["payments: checkpoint"].startswith("it has no positions of the stream")


@pytest.mark.usefixtures("server")
def test_a_checkpoint_is_examined(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text(Checkpoint("kinesis:another").to_json())
    result = run(*ORDERS, "--checkpoint", str(path), "--json")
    assert result.exit_code == 1
    assert statuses(result)["checkpoint"] == "problem"
    (found,) = [each for each in answer(result)["findings"] if each["check"] == "checkpoint"]
    assert found["detail"].startswith("it belongs to kinesis:another, not to kinesis:arn:")


def test_a_file_with_positions_needs_no_directory_of_an_owner(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text(Checkpoint("kinesis:another").to_json())
    result = run("doctor", "--checkpoint", str(path), "--json")
    assert result.exit_code == 0, result.output
    assert statuses(result) == {"lag": "unknown"}


@pytest.mark.usefixtures("server")
def test_a_damaged_checkpoint_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text("{}")
    result = run(*ORDERS, "--checkpoint", str(path), "--json")
    assert result.exit_code == 1
    assert statuses(result)["checkpoint"] == "problem"
    assert statuses(result)["stream"] == "ok"


@pytest.mark.usefixtures("server")
def test_the_price_is_that_of_fanout_consumers_cost() -> None:
    cost = answer(run("consumers", "cost", "orders", "--json"))
    price = {each["check"]: each["detail"] for each in answer(run(*ORDERS, "--json"))["findings"]}
    assert f"${cost['per_consumer']:.2f} a month on {cost['shards']} open" in price["price"]
    assert f"${cost['gb_price']} for each GB" in price["price"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a b", "etl"], "STREAM 'a b' is neither a stream's name"),
        (["orders", "a/b"], "CONSUMER 'a/b' is neither a consumer's name"),
        (["orders", "--subscribe"], "--subscribe needs a consumer"),
        (["orders", "etl", "--checkpoint", "/nowhere"], "no stored positions at /nowhere"),
        (["orders", "etl", "--endpoint-url", "http://10.0.0.1"], "without TLS: use https\n"),
        (
            ["orders", "etl", "--external-id", "a-7"],
            "--external-id is for the role of --role-arn: set --role-arn, or leave --external-id",
        ),
        (
            ["orders", "etl", "--role-arn", "r", "--role-session-name", "a/b"],
            "--role-session-name a/b must be 2 to 64 letters, digits or _ + = , . @ -\n",
        ),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_on_stderr_and_exits_with_2(
    arguments: list[str], sentence: str
) -> None:
    result = run("doctor", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("fanout doctor: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.usefixtures("server")
def test_the_sdk_prints_no_traceback_of_its_own() -> None:
    command = [sys.executable, "-c", "from fanout.cli.app import app; app()", *ORDERS]
    done = subprocess.run(  # noqa: S603 - our own code
        [*command, "--role-arn", "nonsense"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "RoleArn" in done.stdout


def test_no_secret_is_printed(server: KinesisServer) -> None:
    code = "InvalidSignatureException"
    signed = f"The Canonical String for this request should have been {CANARY}"
    server.inject(RefuseCall(action="DescribeStreamSummary", code=code, message=signed, times=9))
    for result in (run(*ORDERS), run(*ORDERS, "--json"), run(*ORDERS, "--subscribe")):
        assert CANARY not in result.output
        assert "testing" not in result.output


def test_help_shows_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "fanout doctor orders orders-etl --checkpoint" in run("doctor", "--help").stdout


@pytest.mark.long
def test_the_checkpoint_of_a_query_is_read_without_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import fanout.cli.doctor, fanout.kinesis.doctor.diagnose\n"
        "import fanout.landing.log.checkpoint_status\n"
        "print([name for name in sys.modules if name.startswith('fanout.spark')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("server")
def test_a_plan_for_landers_is_examined() -> None:
    result = run(*ORDERS, "--landers", "2", "--json")
    assert result.exit_code == 0
    found = {each["check"]: each for each in answer(result)["findings"]}
    assert found["landers"]["status"] == "ok"
    assert found["landers"]["detail"].startswith("2 for 2 open shards: 1 at most for each lander")
    assert found["calls of landers"]["detail"].startswith(
        "2 subscriptions of the consumer, one for each open shard, whichever lander has it"
    )
    assert found["cores for landers"]["detail"].endswith("give Spark 3 cores at least")
    assert (found["checkpoint of landers"]["status"], found["checkpoint of landers"]["advice"]) == (
        "unknown",
        "name it with --checkpoint to have it checked",
    )


@pytest.mark.usefixtures("server")
def test_more_landers_than_shards_and_a_local_checkpoint_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text(Checkpoint("kinesis:another").to_json())
    result = run("doctor", "orders", "--landers", "8", "--checkpoint", str(path), "--json")
    found = {each["check"]: each for each in answer(result)["findings"]}
    assert found["landers"]["status"] == "warning"
    assert found["landers"]["detail"].startswith("8 for 2 open shards: 6 would have nothing")
    assert found["calls of landers"]["detail"].startswith("each shard is polled by one lander")
    place = found["checkpoint of landers"]
    assert place["status"] == "warning"
    assert place["detail"] == f"{path} is a path, which may be another disk on each machine"


@pytest.mark.parametrize(
    ("location", "status"),
    [
        ("s3a://lake/_chk", "ok"),
        ("abfss://c@a.dfs.core.windows.net/chk", "ok"),
        ("hdfs://n/c", "problem"),
    ],
)
def test_landers_reach_object_storage_and_no_place_that_takes_a_jvm(
    location: str, status: str
) -> None:
    assert _place_of_landers(location).status == status


def test_landers_alone_are_no_plan() -> None:
    result = run("doctor", "--landers", "8")
    assert result.exit_code == 2
    assert "--landers needs what the landers read" in " ".join(result.stderr.split())
