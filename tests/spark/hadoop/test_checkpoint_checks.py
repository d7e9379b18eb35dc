"""`fanout doctor` and `fanout status` on a remote checkpoint: a mount that only Hadoop knows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.errors import CheckpointError
from fanout.landing.claims import claim
from fanout.spark.hadoop.jvm import jvm
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.remote_checkpoint import examine_location
from fanout.spark.hadoop.storage import open_storage
from fanout.spark.hadoop.write_once import WriteOnce

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.kinesis import KinesisSource
    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def test_a_rename_that_replaces_a_file_excludes_no_second_writer(
    spark: SparkSession,
    remote_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rename = WriteOnce._rename

    def replacing(writer: WriteOnce, temporary: Any, final: Any) -> None:
        writer._fs.delete(final, False)  # noqa: FBT003 - Java: recursive
        rename(writer, temporary, final)

    monkeypatch.setattr(WriteOnce, "_rename", replacing)
    place, create = examine_location(spark, remote_checkpoint)
    assert (place.status, place.detail) == (
        "ok",
        f"{remote_checkpoint}/fanout answers and is empty",
    )
    assert (create.check, create.status) == ("exclusive create", "warning")
    assert create.detail == "of two writers at once both succeeded"
    assert "never start a second one here" in create.advice
    assert [*(tmp_path / "mounted").rglob("*fanout*")] == []
    assert files(tmp_path / "mounted") == set()


def test_a_rename_that_refuses_a_taken_name_is_exclusive(
    spark: SparkSession,
    remote_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rename = WriteOnce._rename

    def refusing(writer: WriteOnce, temporary: Any, final: Any) -> None:  # as HDFS does
        if writer._fs.exists(final):
            raise FileExistsError(final.toString())
        rename(writer, temporary, final)

    monkeypatch.setattr(WriteOnce, "_rename", refusing)
    with claim(open_storage(spark, remote_checkpoint), JvmProcess(spark)):
        before = files(tmp_path / "mounted")
        place, create = examine_location(spark, remote_checkpoint)
        assert files(tmp_path / "mounted") == before
    assert place.detail.endswith("answers and holds a checkpoint")
    assert create.status == "ok"
    assert create.detail == "of two writers one was refused, by a temporary file that is renamed"


def test_a_place_that_may_not_be_written_is_a_problem(
    spark: SparkSession, remote_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise CheckpointError("cannot write there: Permission denied")

    monkeypatch.setattr(WriteOnce, "write", refused)
    (create,) = [
        each
        for each in examine_location(spark, remote_checkpoint)
        if each.check == "exclusive create"
    ]
    assert (create.status, create.detail) == ("problem", "cannot write there: Permission denied")


@pytest.mark.usefixtures("spark")
def test_a_file_system_that_cannot_be_opened_is_one_sentence() -> None:
    result = run("doctor", "--checkpoint", "viewfs://nowhere/chk")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "cannot use the checkpoint location 'viewfs://nowhere/chk': " in result.stderr


@pytest.mark.long
def test_the_commands_read_a_remote_checkpoint_while_its_query_runs(
    start: Callable[..., FanOutQuery],
    orders: KinesisSource,
    kinesis: KinesisServer,
    remote_checkpoint: str,
    tmp_path: Path,
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def handler(_df: DataFrame, _batch_id: int) -> None:
        inside.set()
        go_on.wait(60)

    kinesis.put_records("orders", [("a", b"1"), ("b", b"2")])
    start(orders, handler, checkpoint_location=remote_checkpoint, max_records=2)
    try:
        assert inside.wait(60)
        before = files(tmp_path / "mounted")
        result = run("status", remote_checkpoint, "--json")
        assert files(tmp_path / "mounted") == before
        examined = run("doctor", "--checkpoint", remote_checkpoint, "--json")
    finally:
        go_on.set()
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["location"] == f"{remote_checkpoint}/fanout"
    assert found["batch"]["rows"] > 0
    assert found["owner"]["run"] == 1
    assert found["owner"]["application"].startswith("fanout-tests")
    assert found["owner"]["running"] is None
    assert {split["split"] for split in found["splits"]} == {
        "shardId-000000000000",
        "shardId-000000000001",
    }
    assert examined.exit_code == 0, examined.output
    checks = {each["check"]: each for each in json.loads(examined.stdout)["findings"]}
    assert checks["owner"]["detail"].startswith("run 1, application 'fanout-tests")
    assert checks["checkpoint location"]["status"] == "ok"


@pytest.mark.usefixtures("spark")
def test_a_remote_place_without_a_checkpoint_is_one_sentence(remote_checkpoint: str) -> None:
    result = run("status", remote_checkpoint)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"there is no checkpoint of fanout at {remote_checkpoint}/fanout" in result.stderr


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("command", [["status"], ["doctor", "--checkpoint"]], ids=" ".join)
def test_a_file_system_without_its_jar_names_what_to_set(command: list[str]) -> None:
    result = run(*command, "nosuch://lake/checkpoint")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "; name its jar and its settings in spark-defaults.conf" in result.stderr


def test_a_missing_jar_is_named_in_the_version_of_sparks_hadoop_alone(spark: SparkSession) -> None:
    hadoop = jvm(spark).org.apache.hadoop.util.VersionInfo.getVersion()
    result = run("status", "s3a://lake/checkpoint")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert re.findall(r"\d+\.\d+\.\d+", result.stderr) == [hadoop]
    assert f"--packages org.apache.hadoop:hadoop-aws:{hadoop}; name its jar and" in result.stderr


@pytest.mark.usefixtures("spark")
def test_a_scheme_that_no_jar_has_names_the_right_one() -> None:
    result = run("status", "s3://lake/checkpoint")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("the location of Hadoop's S3 connector begins with s3a://\n")


@pytest.mark.prove
def test_a_session_is_started_quietly_where_there_is_none(tmp_path: Path) -> None:
    mount = f"spark.hadoop.fs.viewfs.mounttable.lake.link./chk={tmp_path.as_uri()}"
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--conf {mount} pyspark-shell"}
    code = "from fanout.cli.app import app; app()"
    command = [sys.executable, "-c", code, "doctor", "--checkpoint", "viewfs://lake/chk/query"]
    done = subprocess.run(  # noqa: S603 - our own code
        [*command, "--json"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    checks = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert [*checks] == ["checkpoint location", "exclusive create", "checkpoint"]
    nothing = "there is no checkpoint of fanout at viewfs://lake/chk/query/fanout, and no landing"
    assert checks["checkpoint"]["detail"].startswith(nothing)
