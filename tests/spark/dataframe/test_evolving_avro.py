"""The schema of an Avro topic evolves while a landing and a query over it run and are killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
import uuid
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import pyarrow.parquet as pq
import pytest

from fanout.landing.log.columns import landed_schema
from fanout.landing.log.entries import batch_ids, read_entry
from fanout.landing.storage.local_storage import LocalStorage
from tests.spark.dataframe.driver_process import kill, running, wait_for_end, wait_until_running
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.kafka.topics import Topic
from tests.support.pages import python_blocks
from tests.support.schema_registry import EmbeddedRegistry, embedded_registry
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

# Confluent's client leaves sockets open.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
TIME = {"type": "long", "logicalType": "timestamp-micros"}
STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
# The fields by the version that adds them: their types, and the defaults that older records have.
FIELDS: list[dict[str, tuple[Any, Any]]] = [
    {"id": ("long", None), "name": ("string", None)},
    {"amount": (["null", MONEY], None), "at": (["null", TIME], None)},
    {"state": (STATE, "NEW"), "tags": ({"type": "map", "values": "int"}, {})},
    {"items": ({"type": "array", "items": ITEM}, []), "score": ("double", 0.5)},
]
DEFAULTS = {name: default for each in FIELDS for name, (_, default) in each.items()}
DAY = datetime(2026, 11, 22, tzinfo=UTC)
PLACES = ("topic", "partition", "offset")
PARTITIONS = 3
Rows: TypeAlias = dict[tuple[int, int], dict[str, Any]]


def schema(version: int) -> dict[str, Any]:
    """Return the schema of a version; what is new is in the middle."""
    fields: list[dict[str, Any]] = []
    for number, added in enumerate(FIELDS[: version + 1]):
        for name, (kind, default) in added.items():
            more = {"default": default} if number else {}
            fields.insert(min(number, len(fields)), {"name": name, "type": kind} | more)
    return {"type": "record", "name": "Order", "fields": fields}


def row(number: int, version: int) -> dict[str, Any]:
    values = {
        "id": number * 10**12,
        "name": f"é{number}",
        "amount": None if number % 3 else Decimal(number).scaleb(-4),
        "at": None if number % 4 else DAY + timedelta(microseconds=number),
        "state": "PAID" if number % 2 else "NEW",
        "tags": {f"t{n}": n for n in range(number % 3)},
        "items": [{"sku": f"s{n}"} for n in range(number % 4)],
        "score": number / 3,
    }
    names = [name for added in FIELDS[: version + 1] for name in added]
    return {name: values[name] for name in names}


@final
class Producers:
    """Programs that write to the topic by Confluent's serializer; what they sent, by its place."""

    def __init__(self, topic: Topic, registry: EmbeddedRegistry) -> None:
        confluent = pytest.importorskip("confluent_kafka.schema_registry")
        avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
        self._client = confluent.SchemaRegistryClient({"url": registry.url})
        self._serializers = [
            avro.AvroSerializer(self._client, json.dumps(schema(version)))
            for version in range(len(FIELDS))
        ]
        self._topic = topic
        self.sent: Rows = {}

    def close(self) -> None:
        self._client.close()

    def send(self, version: int, count: int) -> None:
        from confluent_kafka.serialization import (  # noqa: PLC0415 - an optional library
            MessageField,
            SerializationContext,
        )

        context = SerializationContext(self._topic.name, MessageField.VALUE)
        for partition in range(PARTITIONS):
            before = len(self._topic.log[partition])
            rows = [row(len(self.sent) + n, version) for n in range(count)]
            values = [self._serializers[version](each, context) for each in rows]
            self._topic.write([{"value": value} for value in values], partition)
            places = [offset for offset, _ in self._topic.log[partition][before:]]
            self.sent |= {(partition, place): r for place, r in zip(places, rows, strict=True)}


@final
class Lander:
    """The command `fanout land`, which a test kills."""

    def __init__(self, topic: Topic, registry: EmbeddedRegistry, path: Path) -> None:
        self.path = path / "landing"
        self._errors = path / "errors"
        self._command = [
            *(*FANOUT, "land", f"kafka://{topic.name}", str(self.path), "--max-wait", "0.2"),
            *("--bootstrap-servers", topic.broker.bootstrap_servers, "--start", "earliest"),
            *("--decode", "avro", "--registry", registry.url),
        ]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own code
                self._command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=errors
            )
        try:
            yield process
            assert process.poll() is None, self._errors.read_text()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def land_the_rest(self) -> None:
        done = subprocess.run(  # noqa: S603 - our own code
            [*self._command, "--available-now"], env=ENVIRONMENT, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def files(self) -> list[str]:
        """Return the files that entries name, in their order."""
        storage = LocalStorage(self.path)
        entries = (
            read_entry(storage, n) for n in batch_ids(f.name for f in storage.list("batches"))
        )
        return [file.name for entry in entries if entry is not None for file in entry.segments]

    def names(self) -> set[str]:
        with suppress(Exception):  # the first run has just begun
            return {*landed_schema(LocalStorage(self.path)).names}
        return set()


def resolved(sent: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return what was sent as a reader with some fields reads it."""
    return {name: sent.get(name, DEFAULTS[name]) for name in names}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: dict(v) if k == "tags" and v is not None else v for k, v in values.items()}


@pytest.mark.parametrize("versions", [2, pytest.param(len(FIELDS), marks=pytest.mark.prove)])
def test_typed_rows_are_equal_to_what_was_sent(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path, versions: int
) -> None:
    drawn, killed = random.Random(7), 0
    mark = uuid.uuid4().hex
    (tmp_path / "scratch").mkdir()
    arguments = [str(tmp_path / name) for name in ("landing", "checkpoint", "results", "scratch")]
    query = partial(running, "typed_query", mark, *arguments)
    topic = Topic(kafka_broker, partitions=PARTITIONS)

    def batches() -> int:
        """Return how many batches the query has written."""
        return len([*(tmp_path / "results" / "_spark_metadata").glob("[0-9]*")])

    def more_than(before: int, driver: subprocess.Popen[str]) -> bool:
        assert driver.poll() is None, driver.communicate()[1]
        return batches() > before

    with embedded_registry() as registry, closing(Producers(topic, registry)) as producers:
        lander = Lander(topic, registry, tmp_path)
        for version in range(versions):
            producers.send(version, 30)
            with lander.running():
                eventually(_has(lander, {*row(0, version)}), "its columns")
                with query("for ever") as driver:
                    before = batches()
                    wait_until_running(driver)
                    eventually(partial(more_than, before, driver), "a batch")
                    producers.send(version, 30)
                    producers.send(drawn.randrange(version + 1), 10)
                    time.sleep(drawn.uniform(0.0, 3.0))
                    killed += kill(mark, drawn.choice(["driver", "planner"]), "worker")
            for later in (version, min(version + 1, versions - 1)):
                producers.send(version, 20)
                with lander.running():
                    producers.send(later, 20)  # it may read them with the schema of before
                    time.sleep(drawn.uniform(0.5, 6.0))
        lander.land_the_rest()
        assert killed >= versions
        with query("now") as driver:
            wait_until_running(driver)
            wait_for_end(driver)
    landed = _landed(lander, producers.sent, versions)
    _compare_results(spark, str(tmp_path / "results"), landed, versions)


def _has(lander: Lander, wanted: set[str]) -> Callable[[], bool]:
    return lambda: wanted <= lander.names()


def _landed(lander: Lander, sent: Rows, versions: int) -> Rows:
    """Return the rows of the landing, each compared with what was sent."""
    found: Rows = {}
    columns: set[tuple[str, ...]] = set()
    for file in lander.files():
        table = pq.read_table(lander.path / file)
        names = [name for name in table.column_names if name not in PLACES]
        columns.add(tuple(names))
        for each in table.to_pylist():
            place = each["partition"], each["offset"]
            assert place not in found, f"{place} twice"
            found[place] = plain({name: each[name] for name in names})
            assert found[place] == resolved(sent[place], names)
    assert found.keys() == sent.keys()
    assert len(columns) == versions
    return found


def _compare_results(spark: SparkSession, results: str, landed: Rows, versions: int) -> None:
    """Compare what the query wrote with the landing, in the columns that it had at its start."""
    places: list[tuple[int, int]] = []
    columns: set[tuple[str, ...]] = set()
    for file in spark.read.parquet(results).inputFiles():
        table = pq.read_table(file.removeprefix("file:"))
        names = [name for name in table.column_names if name not in PLACES]
        columns.add(tuple(names))
        for each in table.to_pylist():
            place = each["partition"], each["offset"]
            places.append(place)
            values = plain({name: each[name] for name in names})
            assert values == {name: landed[place].get(name) for name in names}
    assert sorted(places) == sorted(landed)
    assert len(columns) == versions


def test_the_example_of_the_page_reads_a_topic_into_columns(
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del spark  # the example gets it
    (example,) = [each for each in python_blocks("typed-records.md") if "readStream" in each]
    assert len([line for line in example.splitlines() if line]) <= 15
    topic = Topic(kafka_broker, partitions=PARTITIONS)
    monkeypatch.chdir(tmp_path)
    with embedded_registry() as registry, closing(Producers(topic, registry)) as producers:
        producers.send(3, 2)
        for there, here in (
            ("localhost:9092", kafka_broker.bootstrap_servers),
            ("http://localhost:8081", registry.url),
            ('subscribe="orders"', f'subscribe="{topic.name}"'),
            ('"landing")', f'"{tmp_path}/landing")'),
            ('"checkpoint")', f'"{tmp_path}/checkpoint")'),
            ('("orders")', f'("{tmp_path}/orders")'),
        ):
            assert there in example
            example = example.replace(there, here)
        exec(example, {})  # noqa: S102 - the page is ours
    assert capsys.readouterr().out.count("|1000000000000|") == 1
