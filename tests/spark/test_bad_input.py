"""Checkpoints, streams and machines that are not as they should be: a clear error, nothing lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest
from aiobotocore.credentials import AioCredentialResolver

from fanout.errors import (
    BatchFailedError,
    CheckpointError,
    FanOutError,
    OptionError,
    ServiceError,
    SetupError,
)
from fanout.landing.log.columns import encode_schema
from fanout.spark import foreach_batch
from tests.support.manual_source import SCHEMA, ManualSource
from tests.support.spark.harness import PATIENCE, Recorder, fail, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from fanout.kinesis import KinesisSource
    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

DONE = (b"one", b"two", b"three")
UNFINISHED = [b"x" * 1000] * 100


@pytest.fixture
def source() -> ManualSource:
    return ManualSource()


@pytest.fixture
def root(checkpoint: str) -> Path:
    return Path(checkpoint)


@pytest.fixture(scope="module")
def done_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("done") / "checkpoint"
    recorder, source = Recorder(), ManualSource()
    source.put(*DONE)
    query = foreach_batch(spark, source, recorder, checkpoint_location=str(made), max_records=1)
    recorder.wait_for_rows(len(DONE))
    query.stop()
    assert recorder.batch_ids == [0, 1, 2]
    return made


@pytest.fixture
def done(source: ManualSource, root: Path, done_once: Path) -> Path:
    """A checkpoint whose three batches are done."""
    source.put(*DONE)
    shutil.copytree(done_once, root)
    return root


@pytest.fixture(scope="module")
def unfinished_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("unfinished") / "checkpoint"
    source = ManualSource()
    source.put(*UNFINISHED)
    with pytest.raises(BatchFailedError):
        foreach_batch(spark, source, fail, checkpoint_location=str(made)).await_termination()
    return made


@pytest.fixture
def unfinished(source: ManualSource, root: Path, unfinished_once: Path) -> Path:
    """A checkpoint whose only batch is going to be replayed; returns its segment."""
    source.put(*UNFINISHED)
    shutil.copytree(unfinished_once, root)
    [segment] = (root / "fanout" / "segments").iterdir()
    return segment


def ends_with(error: type[FanOutError], query: FanOutQuery, match: str) -> None:
    with pytest.raises(error, match=match):
        query.await_termination(PATIENCE)
    assert fanout_threads() == []


# Checkpoints.


@pytest.mark.usefixtures("done")
def test_another_sources_checkpoint_is_refused(start: Start) -> None:
    with pytest.raises(CheckpointError, match=r"belong to manual:one, not to manual:two.*resume"):
        start(ManualSource(identity="manual:two"), Recorder())
    assert fanout_threads() == []


def test_another_sources_origin_is_refused(start: Start, root: Path) -> None:
    start(ManualSource(), Recorder()).stop()
    shutil.rmtree(root / "fanout" / "batches")
    with pytest.raises(CheckpointError, match="belong to manual:one, not to manual:two"):
        start(ManualSource(identity="manual:two"), Recorder())


@pytest.mark.parametrize("name", ["origin.json", "batches/000000000002.json"])
def test_a_newer_versions_checkpoint_is_refused(
    start: Start, source: ManualSource, done: Path, name: str
) -> None:
    path = done / "fanout" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    if name == "origin.json":
        shutil.rmtree(done / "fanout" / "batches")
    with pytest.raises(CheckpointError, match="format version 3"):
        start(source, Recorder())


def test_a_hostile_segment_name_is_refused(start: Start, source: ManualSource, done: Path) -> None:
    path = done / "fanout/batches/000000000002.json"
    path.write_text(path.read_text().replace("segments/run", "../../run"))
    with pytest.raises(CheckpointError, match="is damaged"):
        start(source, Recorder())


def test_without_sparks_offsets_the_query_refuses_to_count_again(
    start: Start, source: ManualSource, done: Path
) -> None:
    shutil.rmtree(done / "offsets")
    shutil.rmtree(done / "commits")
    recorder = Recorder()
    ends_with(CheckpointError, start(source, recorder), r"asks for batch 0, .* batch \d.*restore")
    assert recorder.calls == []


def test_a_checkpoint_whose_entries_are_missing_is_refused(
    start: Start, source: ManualSource, done: Path
) -> None:
    shutil.rmtree(done / "fanout/batches")
    recorder = Recorder()
    ends_with(CheckpointError, start(source, recorder), r"asks for batch \d, .* has no entry of")
    assert recorder.calls == []


@pytest.mark.usefixtures("unfinished")
def test_without_sparks_metadata_the_query_refuses_to_go_on(
    start: Start, source: ManualSource, root: Path
) -> None:
    for name in ("offsets", "commits"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("metadata", ".metadata.crc"):
        (root / name).unlink()
    ends_with(CheckpointError, start(source, Recorder()), "belongs to the Spark query")


def test_damaged_metadata_of_spark_is_a_clear_error(
    start: Start, source: ManualSource, done: Path
) -> None:
    (done / "metadata").write_text("{")
    with pytest.raises(CheckpointError, match="cannot start Spark's side of the query"):
        start(source, Recorder())
    assert fanout_threads() == []


def test_a_name_that_is_taken_is_a_clear_error(
    start: Start, source: ManualSource, tmp_path: Path
) -> None:
    start(source, Recorder(), query_name="orders")
    with pytest.raises(CheckpointError, match=r"name.*already active"):
        start(source, Recorder(), query_name="orders", checkpoint_location=str(tmp_path / "b"))


@pytest.mark.long
def test_without_sparks_commits_the_last_batch_comes_again(
    start: Start, source: ManualSource, done: Path
) -> None:
    shutil.rmtree(done / "commits")
    # A stop ends one or two batches without records.
    for directory in (done / "offsets", done / "fanout" / "batches"):
        for path in directory.iterdir():
            if int(re.sub(r"\D", "", path.name)) > 2:
                path.unlink()
    recorder = Recorder()
    start(source, recorder)
    source.put(b"four")
    recorder.wait_for_rows(2)
    assert recorder.batch_ids == [2, 3]
    assert recorder.sequences == [3, 4]


@pytest.fixture(params=["plain", "careless"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """A session that fails on damaged files, and one that ignores them."""
    names = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    for name in names:
        spark.conf.set(name, request.param == "careless")
    yield spark
    for name in names:
        spark.conf.unset(name)


@pytest.mark.usefixtures("session")
class TestDamagedSegment:
    def test_a_missing_one_is_an_error(
        self, start: Start, source: ManualSource, unfinished: Path
    ) -> None:
        unfinished.unlink()
        recorder = Recorder()
        ends_with(CheckpointError, start(source, recorder), r"is missing; restore this file alone")
        assert recorder.calls == []

    def test_a_truncated_one_is_an_error(
        self, start: Start, source: ManualSource, unfinished: Path
    ) -> None:
        os.truncate(unfinished, unfinished.stat().st_size // 2)
        recorder = Recorder()
        ends_with(
            CheckpointError, start(source, recorder), r"bytes instead of \d+; restore this file"
        )
        assert recorder.calls == []

    def test_one_with_a_changed_record_is_an_error(
        self, start: Start, source: ManualSource, unfinished: Path
    ) -> None:
        whole = unfinished.read_bytes()
        place = whole.index(b"x" * 1000)
        unfinished.write_bytes(whole[:place] + b"y" + whole[place + 1 :])
        recorder = Recorder()
        ends_with(CheckpointError, start(source, recorder), r"cannot be read; .*restore this file")
        assert recorder.calls == []

    def test_one_with_a_damaged_footer_is_an_error(
        self, start: Start, source: ManualSource, unfinished: Path
    ) -> None:
        whole = unfinished.read_bytes()
        unfinished.write_bytes(whole[:-40] + b"\0" * 40)
        recorder = Recorder()
        ends_with(CheckpointError, start(source, recorder), r"cannot be read; .*restore this file")
        assert recorder.calls == []


def test_a_checkpoint_location_that_is_a_file_is_refused(
    start: Start, source: ManualSource, root: Path
) -> None:
    root.write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot use .*Not a directory|file is in the way"):
        start(source, Recorder())


def test_a_checkpoint_location_that_cannot_be_written_is_refused(
    start: Start, source: ManualSource
) -> None:
    with pytest.raises(CheckpointError, match="cannot use /proc/"):
        start(source, Recorder(), checkpoint_location="/proc/fanout")


def test_a_checkpoint_location_that_cannot_be_stored_is_refused(
    start: Start, source: ManualSource
) -> None:
    with pytest.raises(OptionError, match=r"checkpoint_location='.*udce4nd' must be a path in UTF"):
        start(source, Recorder(), checkpoint_location="/tmp/l\udce4nd")  # noqa: S108 - not made


def test_an_unknown_scheme_is_refused(start: Start, source: ManualSource) -> None:
    with pytest.raises(CheckpointError, match=r"cannot use .*nosuch"):
        start(source, Recorder(), checkpoint_location="nosuch://bucket/checkpoint")


# Streams.


def test_a_stream_that_does_not_exist_is_named(start: Start, orders: KinesisSource) -> None:
    with pytest.raises(ServiceError, match="the stream 'nothing' cannot be described"):
        start(replace(orders, stream="nothing"), Recorder())
    assert fanout_threads() == []


def test_a_consumer_of_another_stream_is_refused(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    arn = kinesis.create_stream("other")
    with pytest.raises(OptionError, match="is registered on the stream"):
        start(replace(orders, consumer=f"{arn}/consumer/etl:1"), Recorder())


def test_missing_credentials_are_named(start: Start, orders: KinesisSource) -> None:
    session = aioboto3.Session()
    nowhere = AioCredentialResolver(providers=[])
    session._session.register_component("credential_provider", nowhere)
    with pytest.raises(SetupError, match="no AWS credentials were found"):
        start(replace(orders, session=session), Recorder())
    assert fanout_threads() == []


def test_an_endpoint_that_does_not_answer_is_an_error_within_seconds(
    start: Start, orders: KinesisSource
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but it does not listen
        began = time.monotonic()
        with pytest.raises(ServiceError, match="cannot be described"):
            start(
                replace(orders, endpoint_url=f"http://127.0.0.1:{closed.getsockname()[1]}"),
                Recorder(),
            )
    assert time.monotonic() - began < 20
    assert fanout_threads() == []


def test_a_start_that_is_refused_takes_no_checkpoint(start: Start, done: Path) -> None:
    columns = done / "fanout" / "columns" / "000000000000.json"
    columns.parent.mkdir(exist_ok=True)
    wire = {"version": 1, "schema": encode_schema(SCHEMA), "by_date": False, "date_of": ""}
    columns.write_text(json.dumps(wire | {"reader": "json stored"}))
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*")}
    with pytest.raises(CheckpointError, match="and decode has none by now; decode as before, or"):
        start(ManualSource(), Recorder())
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*")} == before


# Machines.


def test_a_failed_start_leaves_the_checkpoint_usable(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(source, "splits", partial(_refuse, OSError("no route to the service")))
        with pytest.raises(ServiceError, match="no route"):
            start(source, Recorder())
    source.put(b"one")
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(1)


def _refuse(error: Exception) -> Any:
    raise error
