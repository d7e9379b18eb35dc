from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import fanout
from fanout.cli.app import app
from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.findings import Backlog
from fanout.core.opening import resolve_start
from fanout.core.positions import Cursor
from fanout.kinesis import KinesisSource
from fanout.landing.claims import claim_stopped
from fanout.landing.log.entries import (
    BatchEntry,
    TakenSegments,
    decode_entry,
    encode_entry,
    entry_name,
)
from fanout.landing.log.pending import Pending, encode_pending, pending_name
from fanout.landing.log.set_aside import SetAsideLog
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalStorage
from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.brokers import connect, create, produce
from tests.support.manual_source import ManualSource
from tests.support.s3 import s3_options
from tests.support.stored_query import at, stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from fanout.kafka.partitions import Partition
    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = KAFKA_COMMANDS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["status", *arguments], env={"COLUMNS": "240", "TERM": "dumb"})


def answer(result: Result, code: int = 0) -> Any:
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_a_checkpoint_alone_is_read_without_its_source(tmp_path: Path) -> None:
    stored(tmp_path, at("kafka:there", **{"orders-0": 5}))
    found = answer(run(str(tmp_path), "--json"))
    batch, owner = found["batch"], found["owner"]
    assert (batch["id"], batch["rows"]) == (7, 20)
    assert batch["watermark"] == "1970-01-01T00:00:01.000+00:00"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", batch["written_at"])
    assert (owner["run"], owner["application"], owner["running"]) == (1, "job", False)
    assert found["splits"] == [
        {
            "split": "orders-0",
            "position": "4",
            "ended": False,
            "newest": "1970-01-01T00:00:00.000+00:00",
            "lag_records": None,
            "lag_ms": None,
        }
    ]
    assert (found["source"], found["lag_error"]) == ("kafka:there", None)


def test_people_get_lines_and_a_table(tmp_path: Path) -> None:
    storage = stored(tmp_path, at("kafka:there", **{"orders-0": 5}), rows=1234)
    kept = Pending(1, SegmentFile("segments/8.parquet", 30, 1), at("kafka:there"), None, "")
    storage.create(pending_name(1), encode_pending(1, kept, run=1))
    with claim_stopped(storage, "next") as ownership:
        log = SetAsideLog(storage, ownership)
        for batch_id in (3, 6):
            places = [f"orders-{number}: 0 to 4" for number in range(7)]
            log.add(batch_id, rows=1234, error="ValueError", places=places)
    result = run(str(tmp_path))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tmp_path}/fanout: kafka:there"
    newest = "the newest is 6 with 1,234 rows (ValueError)"
    assert re.match(
        rf"set aside: 2 batches, {re.escape(newest)}: orders-0: 0 to 4; .*-4: 0 to 4 and 2 more$",
        lines[4],
    )
    assert answer(run(str(tmp_path), "--json"))["set_aside"] == {
        "batches": 2,
        "newest": {"id": 6, "rows": 1234, "error": "ValueError", "ranges": places},
    }
    assert re.match(r"owner: run 2, application 'next', process \d+ on .*ended$", lines[1])
    assert re.match(r"batch: 7 with 1,234 rows, written \S+, [\d,]+ s ago$", lines[2])
    assert lines[3] == "pending: 1 segments with 30 rows that no batch has taken yet"


@pytest.fixture(params=["disk", "bucket"])
def landing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A landing of two entries, of which the newest has three records."""
    source = ManualSource()
    source.put(b"1", b"2", b"3")

    async def fill(location: str) -> None:
        async with fanout.land(source, location, max_wait=0.0, available_now=True) as entries:
            assert [entry.rows async for entry in entries] == [3]

    if request.param == "disk":
        location = str(tmp_path / "orders")
        asyncio.run(fill(location))
        yield location
        return
    with serve_s3() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_options(endpoint).items():
            patch.setenv(f"AWS_{name.upper()}", value)
        location = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        asyncio.run(fill(location))
        yield location


def test_a_landing_has_entries_in_place_of_batches(landing: str) -> None:
    """It is read without Spark, in a bucket too."""
    found = answer(run(landing, "--json"))
    assert (found["landing"], found["entries"], found["source"]) == (True, 2, "manual:one")
    assert (found["batch"]["id"], found["batch"]["rows"]) == (1, 3)
    assert found["owner"]["application"] == "fanout land"
    assert [(each["split"], each["position"]) for each in found["splits"]] == [("a", "3")]
    lines = run(landing).stdout.splitlines()
    assert lines[0] == f"{landing}: manual:one"
    assert re.match(
        r"entry: 1 with 3 rows, written \S+, [\d,]+ s ago; 2 entries are kept$", lines[2]
    )
    assert "batch" not in "".join(lines)


def test_doctor_checks_a_landing(landing: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--checkpoint", landing, "--json"])
    found = {each["check"]: each for each in answer(result)["findings"]}
    assert {*found} == {"owner", "lag"} | ({"free space"} if "://" not in landing else set())
    assert found["lag"]["detail"] == "1 splits of manual:one, which was not asked"
    assert found["owner"]["detail"].startswith("run 1, application 'fanout land', process ")


def test_the_positions_are_those_after_the_pending_segments(tmp_path: Path) -> None:
    storage = stored(tmp_path, at("kafka:there", **{"orders-0": 5}))
    after = at("kafka:there", **{"orders-0": 9})
    kept = Pending(3, SegmentFile("segments/8.parquet", 30, 1), after, None, "")
    entry = BatchEntry(8, "query", (), at("kafka:there"), taken=TakenSegments(2, ""))
    storage.create(entry_name(8), encode_entry(entry, run=1))
    storage.create(pending_name(3), encode_pending(3, kept, run=1))
    (split,) = answer(run(str(tmp_path), "--json"))["splits"]
    assert split["position"] == "8"


def test_a_query_that_has_not_begun_has_no_batch(tmp_path: Path) -> None:
    with claim_stopped(LocalStorage(tmp_path / "fanout"), "job"):
        pass
    assert run(str(tmp_path)).stdout.splitlines()[2] == "batch: none yet"
    found = answer(run(str(tmp_path), "--json"))
    assert (found["batch"], found["source"], found["splits"]) == (None, None, [])


def test_the_checkpoint_may_be_a_uri(tmp_path: Path) -> None:
    stored(tmp_path, at("kafka:there"))
    assert answer(run(tmp_path.as_uri(), "--json"))["batch"]["id"] == 7


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"[]", "is damaged"),
        (b'{"version":3}', "has format version 3, which is newer"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, data: bytes, sentence: str
) -> None:
    stored(tmp_path, at("kafka:there")).create(entry_name(9), data)
    result = run(str(tmp_path))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("fanout status: batches/000000000009.json in ")
    assert sentence in result.stderr


@pytest.mark.parametrize("name", ["missing", "spark"])
def test_what_is_no_checkpoint_of_fanout_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    result = run(str(tmp_path / name))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "there is no checkpoint of fanout at" in result.stderr
    assert "this path is on the local disk; write hdfs://… if it is there" in result.stderr
    assert not (tmp_path / "missing").exists()


def test_a_local_checkpoint_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    stored(tmp_path, at("kafka:there"))
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from fanout.cli.app import app; app()"
    )
    command = [sys.executable, "-c", code, "status", str(tmp_path), "--json"]
    done = subprocess.run(  # noqa: S603 - our own code
        command, capture_output=True, text=True, check=False, env={"PATH": "/nowhere"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["batch"]["id"] == 7


@pytest.mark.long
def test_a_remote_checkpoint_without_pyspark_names_the_extra() -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'pyspark':\n"
        "            raise ModuleNotFoundError(name, name='pyspark')\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import fanout._exports as exports; exports.find_spec = lambda name: None\n"
        "from fanout.cli.app import app; app()"
    )
    command = [sys.executable, "-c", code, "status", "s3a://lake/checkpoint"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    assert (done.returncode, done.stdout) == (2, "")
    needed = "it needs pyspark, which is not installed: pip install 'fanout-streams[spark]'"
    assert done.stderr == f"fanout status: {needed}\n"


# The lag


@pytest.fixture
def orders(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Path:
    """The checkpoint of a reader of `orders` that has an unread record in one of two shards."""
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders", shards=2)

    async def read() -> str:
        source = KinesisSource(stream="orders", consumer="etl", start="TRIM_HORIZON")
        async with fanout.open(source) as stream:
            kinesis_server.put_records("orders", [("a", b"1")])
            await stream.acknowledge(await stream.drain(max_records=1))
            return stream.positions

    positions = asyncio.run(read())
    kinesis_server.put_records("orders", [("a", b"2")])
    stored(tmp_path, Checkpoint.from_json(positions))
    return tmp_path


@pytest.mark.usefixtures("orders")
def test_the_lag_of_several_streams_is_asked_for_together(
    kinesis_server: KinesisServer, tmp_path: Path
) -> None:
    kinesis_server.create_stream("payments")
    kinesis_server.put_records("payments", [("a", b"1")])

    async def resolve() -> str:
        streams = ["orders", "payments"]
        return await resolve_start(KinesisSource(stream=streams, consumer="etl", start="earliest"))

    checkpoint = tmp_path / "both"
    stored(checkpoint, Checkpoint.from_json(asyncio.run(resolve())))
    splits = answer(run(str(checkpoint), "orders,payments", "--json"))["splits"]
    assert sorted((split["split"], split["lag_ms"] > 0) for split in splits) == [
        ("orders/shardId-000000000000", True),
        ("orders/shardId-000000000001", False),
        ("payments/shardId-000000000000", True),
    ]
    alone = answer(run(str(checkpoint), "payments", "--json"))["splits"]
    assert [split["lag_ms"] is None for split in alone] == [True, True, False]


def test_the_lag_of_each_shard_is_asked_for_where_the_stream_is_named(orders: Path) -> None:
    splits = answer(run(str(orders), "orders", "--json"))["splits"]
    assert sorted(split["lag_ms"] > 0 for split in splits) == [False, True]
    assert [split["lag_records"] for split in splits] == [None, None]
    unasked = answer(run(str(orders), "--json"))["splits"]
    assert [split["lag_ms"] for split in unasked] == [None, None]


def test_a_shard_that_has_ended_or_gone_has_a_word_for_its_lag(
    orders: Path, tmp_path: Path
) -> None:
    data = LocalStorage(orders / "fanout").read(entry_name(7), limit=1 << 20)
    known = decode_entry(data or b"", 7, location="here").positions
    parent, child = (Split(f"shardId-00000000009{n}") for n in (8, 9))
    others = {
        parent.id: SplitPosition(parent, Cursor(5), ended=True),
        child.id: SplitPosition(child, Cursor(6)),
    }
    stored(tmp_path / "more", replace(known, splits={**known.splits, **others}))
    asked = run(str(tmp_path / "more"), "orders").stdout
    cells = {
        row[1]: row[4]
        for row in ([cell.strip() for cell in line.split("│")] for line in asked.splitlines())
        if len(row) > 4 and row[1].startswith("shardId")
    }
    assert (cells[parent.id], cells[child.id]) == ("ended", "gone")
    assert {cells[id_] for id_ in known.splits} == {""}
    unasked = run(str(tmp_path / "more")).stdout
    assert "gone" not in unasked
    splits = answer(run(str(tmp_path / "more"), "orders", "--json"))["splits"]
    assert {each["split"]: each["lag_ms"] for each in splits}[child.id] is None


@pytest.mark.usefixtures("orders")
def test_a_lag_that_cannot_be_read_exits_with_1(orders: Path) -> None:
    found = answer(run(str(orders), "nosuch", "--json"), code=1)
    assert found["batch"]["id"] == 7
    assert "nosuch" in found["lag_error"]
    assert "the lag could not be read: " in run(str(orders), "nosuch").stdout


def test_the_lag_of_each_partition_is_asked_for_where_brokers_are_named(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    async def prepare() -> tuple[Partition, str]:
        partition = await create(kafka_broker, f"orders-{uuid.uuid4().hex[:8]}")
        await produce(kafka_broker, partition, b"a", b"b", b"c")
        async with connect(kafka_broker) as transport:
            return partition, transport.cluster_id

    partition, cluster = asyncio.run(prepare())
    stored(tmp_path / "right", at(f"kafka:{cluster}", **{str(partition): 1}))
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    (split,) = answer(run(str(tmp_path / "right"), *servers, "--json"))["splits"]
    assert split["lag_records"] == 2
    assert split["lag_ms"] >= 0
    assert "│ 2 " in run(str(tmp_path / "right"), *servers).stdout

    stored(tmp_path / "other", at("kafka:other", **{str(partition): 1}))
    found = answer(run(str(tmp_path / "other"), *servers, "--json"), code=1)
    assert found["lag_error"] == f"it belongs to kafka:other, not to kafka:{cluster}"


def test_a_stream_for_a_checkpoint_of_kafka_is_wrong_usage(tmp_path: Path) -> None:
    stored(tmp_path, at("kafka:there", **{"orders-0": 1}))
    result = run(str(tmp_path), "orders")
    assert result.exit_code == 2
    assert "the positions are of kafka:there: leave 'orders' out" in result.stderr


def test_an_expired_position_is_said_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_lag(*_: object) -> dict[str, Backlog]:
        return {"orders-0": Backlog(retention=math.inf, hours=0, records=2)}

    monkeypatch.setattr("fanout.kafka.doctor.diagnose.read_lag", read_lag)
    stored(tmp_path, at("kafka:one", **{"orders-0": 1}))
    asked = [str(tmp_path), "--bootstrap-servers", "127.0.0.1:1"]
    found = answer(run(*asked, "--json"), code=1)
    assert found["lag_error"] == "the records that follow in orders-0 have expired"
    table = run(*asked).stdout
    assert "│ expired " in table
    assert table.splitlines()[-1] == "the records that follow in orders-0 have expired"
