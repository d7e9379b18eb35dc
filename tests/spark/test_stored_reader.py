"""A query that goes on has the columns of its start, although a registry has newer ones by now."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.decoding import Avro, Json, SchemaRegistry
from fanout.errors import BatchFailedError, CheckpointError
from tests.support.avro_records import framed, written
from tests.support.schema_registry import EmbeddedRegistry, embedded_registry
from tests.support.spark.harness import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from fanout.kinesis import KinesisSource
    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string", "default": "none"},
    {"name": "paid", "type": "boolean", "default": False},
]


def order(*names: str) -> dict[str, Any]:
    """Return a schema of fields by their names, in this order."""
    known = {field["name"]: field for field in FIELDS}
    return {"type": "record", "name": "Order", "fields": [known[name] for name in names]}


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


class Job:
    """A query that is started again and again."""

    def __init__(self, start: Start, kinesis: KinesisServer, orders: KinesisSource) -> None:
        self.start = start
        self.kinesis = kinesis
        self.orders = orders

    def put(self, *payloads: bytes) -> None:
        self.kinesis.put_records("orders", [("key", each) for each in payloads])

    def run(self, decode: Any, **options: Any) -> list[dict[str, Any]]:
        """Read one record, and return it without its place."""
        recorder = Recorder()
        source = replace(self.orders, decode=decode)
        query = self.start(source, recorder, **options)
        try:
            recorder.wait_for_rows(1)
        finally:
            query.stop()
        return [dict([*row.asDict().items()][3:]) for row in recorder.rows]


@pytest.fixture
def job(start: Start, kinesis: KinesisServer, orders: KinesisSource) -> Job:
    return Job(start, kinesis, orders)


def newest(embedded: EmbeddedRegistry) -> Avro:
    registry = SchemaRegistry(embedded.url)
    return Avro(registry.latest("orders-value"), registry=registry)


def avro(embedded: EmbeddedRegistry, schema: Any, row: Any) -> bytes:
    [record] = framed(embedded.register("orders-value", schema), written(schema, [row]))
    return record


def test_a_query_has_the_columns_of_its_start(
    job: Job, embedded: EmbeddedRegistry, checkpoint: str
) -> None:
    job.put(avro(embedded, order("id", "name"), {"id": 1, "name": "a"}))
    assert job.run(newest(embedded)) == [{"id": 1, "name": "a"}]
    job.put(avro(embedded, order("paid", "name", "id"), {"id": 2, "name": "b", "paid": True}))
    assert job.run(newest(embedded)) == [{"id": 2, "name": "b"}]
    job.put(avro(embedded, order("paid", "id"), {"id": 3, "paid": True}))
    assert job.run(newest(embedded)) == [{"id": 3, "name": "none"}]
    # To forget them is said in one sentence.
    embedded.register("orders-value", order("paid", "id", "name"))
    columns = Path(checkpoint, "fanout", "columns")
    assert len([*columns.iterdir()]) == 1
    shutil.rmtree(columns)
    job.put(avro(embedded, order("id"), {"id": 4}))
    embedded.register("orders-value", order("id", "name", "paid"))
    assert job.run(newest(embedded)) == [{"id": 4, "name": "none", "paid": False}]


@pytest.mark.long
def test_a_batch_that_comes_again_has_the_columns_that_it_had(
    job: Job, embedded: EmbeddedRegistry
) -> None:
    """Its query has died, and the newest schema is another one by now."""
    source = replace(job.orders, decode=newest_of(embedded, order("id", "name")))
    seen: list[list[str]] = []

    def fail_on(df: DataFrame, _: int) -> None:
        seen.append(df.columns[3:])
        raise ValueError("not yet")

    job.put(avro(embedded, order("id", "name"), {"id": 1, "name": "a"}))
    query = job.start(source, fail_on)
    with pytest.raises(BatchFailedError):
        query.await_termination(PATIENCE)
    assert seen == [["id", "name"]]
    later = newest_of(embedded, order("paid", "id"))
    job.put(avro(embedded, order("paid", "id"), {"id": 2, "paid": True}))
    assert job.run(later) == [{"id": 1, "name": "a"}]
    assert job.run(later) == [{"id": 2, "name": "none"}]


def newest_of(embedded: EmbeddedRegistry, schema: Any) -> Avro:
    embedded.register("orders-value", schema)
    return newest(embedded)


@pytest.mark.long
def test_a_schema_of_the_user_adds_columns_and_lacks_none(job: Job, checkpoint: str) -> None:
    job.put(b'{"id": 1, "more": 1}')
    job.run(Json("id BIGINT"))
    job.put(b'{"id": 2, "more": 2}')
    assert job.run(Json("more INT, id BIGINT")) == [{"more": 2, "id": 2}]
    with pytest.raises(CheckpointError) as caught:
        job.run(Json("id BIGINT"))
    where = Path(checkpoint, "fanout")
    assert str(caught.value) == (
        f"{where} cannot be continued: the records so far have the column more of type int32, and "
        f"this source does not have it; read with a schema that has the columns of before, or "
        f"delete {where}/columns to go on with the columns of this one"
    )
    stored = sorted(where.glob("columns/*.json"))
    assert [json.loads(each.read_text())["reader"][:5] for each in stored] == ["json "] * 2


@pytest.mark.long
def test_a_checkpoint_without_a_schema_takes_that_of_the_next_run(
    job: Job, embedded: EmbeddedRegistry, checkpoint: str
) -> None:
    job.put(avro(embedded, order("id", "name"), {"id": 1, "name": "a"}))
    job.run(newest(embedded))
    shutil.rmtree(Path(checkpoint, "fanout", "columns"))
    job.put(avro(embedded, order("id", "name", "paid"), {"id": 2, "name": "b", "paid": True}))
    assert job.run(newest(embedded)) == [{"id": 2, "name": "b", "paid": True}]
    job.put(avro(embedded, order("id"), {"id": 3}))
    assert job.run(newest(embedded)) == [{"id": 3, "name": "none", "paid": False}]
