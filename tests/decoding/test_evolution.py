"""A landing goes on while the schema of its records evolves, with more columns or without."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fanout
from fanout.core.record_decoder import reader_of
from fanout.decoding import Avro, Json, Protobuf, SchemaRegistry
from fanout.decoding.decoder import Decoder
from fanout.errors import CheckpointError, OptionError
from fanout.kafka.reading.columns import NO_RECORDS
from fanout.landing.log.columns import LandedColumns, landed_schema
from fanout.landing.log.evolution import without_new_columns
from fanout.landing.storage.local_storage import LocalStorage
from tests.decoding.protobuf_schemas import parse
from tests.decoding.test_avro import single_object
from tests.support.avro_records import framed, written
from tests.support.kinesis.reading import Stream
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer
    from tests.support.schema_registry import EmbeddedRegistry


def order(**fields: Any) -> dict[str, Any]:
    """Return a schema of fields with their types, and defaults where a pair has one."""
    made = []
    for name, kind in fields.items():
        more = {"default": kind[1]} if isinstance(kind, tuple) else {}
        made.append({"name": name, "type": kind[0] if more else kind} | more)
    return {"type": "record", "name": "Order", "fields": made}


ONE = order(id="long", name=("string", "none"))
TWO = order(id="long", name=("string", "none"), paid=("boolean", False))
THREE = order(id="long", paid=("boolean", False))
WIDER = order(id="double", name=("string", "none"))


class Landed:
    """A stream, and where it is landed."""

    def __init__(self, server: KinesisServer, path: Path) -> None:
        self.stream = Stream(server)
        self.path = path

    def put(self, *payloads: bytes) -> None:
        self.stream.server.put_records(self.stream.name, [("key", each) for each in payloads])

    def run(self, decode: Any, new_columns: str | None = None, **more: Any) -> None:
        """Land what is there."""
        options = {} if new_columns is None else {"new_columns": new_columns}
        asyncio.run(self.land(self.stream.source(decode=decode, **more), options))

    async def land(self, source: Any, options: Any) -> None:
        async with fanout.land(
            source, str(self.path), available_now=True, max_wait=0.0, **options
        ) as landing:
            async for _ in landing:
                pass

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows with all columns, in their order, but for where they are."""
        files = sorted(self.path.rglob("*.parquet"))
        tables = [pq.read_table(file) for file in files]
        found = pa.concat_tables(tables, promote_options="default").sort_by("sequenceNumber")
        places = ["shardId", "sequenceNumber", "subSequenceNumber"]
        rows: list[dict[str, Any]] = found.drop_columns(places).to_pylist()
        return rows

    def columns(self) -> list[str]:
        return [*landed_schema(LocalStorage(self.path)).names[3:]]


@pytest.fixture
def landed(kinesis_server: KinesisServer, tmp_path: Path) -> Landed:
    return Landed(kinesis_server, tmp_path)


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


@pytest.fixture
def newest(embedded: EmbeddedRegistry) -> Callable[[], Avro]:
    registry = SchemaRegistry(embedded.url)
    return lambda: Avro(registry.latest("orders-value"), registry=registry)


def avro(embedded: EmbeddedRegistry, schema: Any, *rows: Any) -> list[bytes]:
    return framed(embedded.register("orders-value", schema), written(schema, rows))


def test_columns_are_added_and_null_in_what_was_landed_before(
    landed: Landed, embedded: EmbeddedRegistry, newest: Callable[[], Avro]
) -> None:
    landed.put(*avro(embedded, ONE, {"id": 1, "name": "a"}))
    landed.run(newest())
    landed.put(*avro(embedded, ONE, {"id": 2, "name": "b"}))
    landed.put(*avro(embedded, TWO, {"id": 3, "name": "c", "paid": True}))
    landed.run(newest())
    assert landed.columns() == ["id", "name", "paid"]
    assert landed.rows() == [
        {"id": 1, "name": "a", "paid": None},
        {"id": 2, "name": "b", "paid": False},
        {"id": 3, "name": "c", "paid": True},
    ]


@pytest.mark.long
def test_new_columns_are_ignored_and_the_schema_of_before_reads_on(
    landed: Landed, embedded: EmbeddedRegistry, newest: Callable[[], Avro]
) -> None:
    landed.put(*avro(embedded, ONE, {"id": 1, "name": "a"}))
    landed.run(newest(), "ignore")
    landed.put(*avro(embedded, TWO, {"id": 2, "name": "b", "paid": True}))
    landed.run(newest(), "ignore")
    # The newest schema lacks a column, and records of older ones are still to be landed.
    landed.put(*avro(embedded, ONE, {"id": 3, "name": "c"}))
    landed.put(*avro(embedded, THREE, {"id": 4, "paid": True}))
    landed.run(newest(), "ignore")
    assert landed.columns() == ["id", "name"]
    assert landed.rows() == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": "c"},
        {"id": 4, "name": "none"},
    ]
    assert len([*landed.path.glob("columns/*")]) == 1


def test_a_schema_that_lacks_a_column_or_changes_a_type_is_refused(
    landed: Landed, embedded: EmbeddedRegistry, newest: Callable[[], Avro]
) -> None:
    landed.put(*avro(embedded, ONE, {"id": 1, "name": "a"}))
    landed.run(newest())
    names = landed_files(landed.path)
    embedded.register("orders-value", THREE)
    with pytest.raises(CheckpointError) as caught:
        landed.run(newest())
    assert str(caught.value).endswith(
        "its records have the column name of type string, and this source does not have it; let "
        "decode return all columns of before, to which it may add some that can be null, or land "
        "to another location, or read with the schema of before by new_columns='ignore'"
    )
    embedded.register("orders-value", WIDER)
    with pytest.raises(CheckpointError, match="the column id of type int64, and this source has d"):
        landed.run(newest())
    with pytest.raises(CheckpointError, match="have id of type int64, and the schema of this sou"):
        landed.run(newest(), "ignore")
    assert landed_files(landed.path) - names == set()


def landed_files(path: Path) -> set[str]:
    return {file.name for folder in ("segments", "columns") for file in (path / folder).glob("*.*")}


@pytest.mark.long
def test_fields_of_a_struct_are_ignored_or_refused(landed: Landed) -> None:
    def json_of(ddl: str) -> Json:
        return Json(ddl, into="order")

    landed.put(b'{"id": 1, "at": {"x": 1}}')
    landed.run(json_of("id BIGINT, at STRUCT<x: INT>"))
    landed.put(b'{"id": 2, "at": {"x": 2, "y": 2}, "more": 1}')
    later = json_of("id BIGINT, at STRUCT<x: INT, y: INT>, more INT")
    with pytest.raises(CheckpointError, match=r"the column order of type struct<.*, and this sou"):
        landed.run(later)
    landed.run(later, "ignore")
    assert landed.rows() == [
        {"order": {"id": 1, "at": {"x": 1}}},
        {"order": {"id": 2, "at": {"x": 2}}},
    ]
    with pytest.raises(CheckpointError, match=r"have order.at.x of type int32, and the schema of"):
        landed.run(json_of("id BIGINT, at STRUCT<x: STRING>"), "ignore")


def test_json_adds_columns_and_ignores_them(landed: Landed) -> None:
    landed.put(b'{"id": 1, "name": "a", "more": 1}')
    landed.run(Json("id BIGINT, name STRING"))
    landed.put(b'{"id": 2, "name": "b", "more": 2}')
    landed.run(Json("more INT, id BIGINT, name STRING"), "ignore")
    landed.put(b'{"id": 3, "name": "c", "more": 3}')
    landed.run(Json("more INT, id BIGINT, name STRING"), "add")
    assert [row["more"] for row in landed.rows()] == [None, None, 3]
    landed.put(b'{"id": 4, "name": "d", "more": 4}')
    landed.run(Json("id BIGINT"), "ignore")
    assert landed.rows()[-1] == {"id": 4, "name": "d", "more": 4}


@pytest.mark.long
def test_directories_are_by_the_columns_that_the_landing_goes_on_with(landed: Landed) -> None:
    """The schema of now may lack a column of them, or have one of their name."""
    by = {"partition_by": ["name", "day(at)"]}

    def run(ddl: str, new_columns: str) -> None:
        source = landed.stream.source(decode=Json(ddl))
        asyncio.run(landed.land(source, {"new_columns": new_columns, **by}))

    landed.put(b'{"id": 1, "name": "a", "at": "2026-11-27T08:00:00Z"}')
    run("id BIGINT, name STRING, at TIMESTAMP", "add")
    landed.put(b'{"id": 2, "name": "b", "at": "2026-11-28T08:00:00Z"}')
    run("id BIGINT", "ignore")
    landed.put(b'{"id": 3, "name": "c", "at": "2026-11-29T08:00:00Z", "at_day": 3}')
    run("id BIGINT, name STRING, at TIMESTAMP, at_day INT", "ignore")
    with pytest.raises(OptionError, match="must not be given with a column 'at_day'"):
        run("id BIGINT, name STRING, at TIMESTAMP, at_day INT", "add")
    files = sorted((landed.path / "segments").rglob("run-*.parquet"))
    found = [str(one.parent.relative_to(landed.path / "segments")) for one in files]
    assert found == [f"name={name}/at_day=2026-11-{27 + n}" for n, name in enumerate("abc")]
    tables = [pq.read_table(one, partitioning=None) for one in files]
    assert [table["id"].to_pylist() for table in tables] == [[1], [2], [3]]


def test_messages_add_columns_and_ignore_them(landed: Landed) -> None:
    fields = [
        'field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }',
        'field { name: "paid" number: 2 type: TYPE_BOOL label: LABEL_OPTIONAL }',
    ]
    one, two = (
        Protobuf(
            parse(f'name: "o.proto" syntax: "proto3" message_type {{ name: "O" {each} }}'), "O"
        )
        for each in (fields[0], "".join(fields))
    )
    assert two.reading(one.reader) == one
    landed.put(b"\x08\x07")
    landed.run(one)
    landed.put(b"\x08\x08\x10\x01")
    landed.run(two, "ignore")
    assert landed.rows() == [{"id": 7}, {"id": 8}]
    landed.put(b"\x08\x09\x10\x01")
    landed.run(two)
    assert landed.rows()[1:] == [{"id": 8, "paid": None}, {"id": 9, "paid": True}]


@pytest.mark.long
def test_single_objects_are_read_with_the_schema_of_before(landed: Landed) -> None:
    def objects(schema: Any, *rows: Any) -> list[bytes]:
        return [single_object(schema) + body for body in written(schema, rows)]

    landed.put(*objects(ONE, {"id": 1, "name": "a"}))
    landed.run(Avro(ONE, framing="single-object"))
    landed.put(*objects(TWO, {"id": 2, "name": "b", "paid": True}))
    landed.run(Avro(TWO, framing="single-object", writers=[ONE]), "ignore")
    assert landed.rows() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


@pytest.mark.long
def test_records_without_a_frame_are_read_with_the_schema_that_is_said(landed: Landed) -> None:
    """No frame says that another schema has written them."""
    landed.put(*written(ONE, [{"id": 1, "name": "a"}]))
    landed.run(Avro(ONE))
    landed.put(*written(TWO, [{"id": 2, "name": "b", "paid": True}]))
    landed.run(Avro(TWO), "ignore")
    assert landed.rows() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_columns_of_a_function_of_the_user_are_left_out(landed: Landed) -> None:
    names = ["shardId", "sequenceNumber", "subSequenceNumber", "data"]
    landed.put(b"1")
    landed.run(lambda records: records.select(names))
    landed.put(b"2")
    landed.run(lambda records: records.select([*names, "partitionKey"]), "ignore")
    assert landed.rows() == [{"data": b"1"}, {"data": b"2"}]


@pytest.mark.long
def test_bad_records_stay_bad_where_columns_are_left_out(landed: Landed) -> None:
    narrow, wide = Json("id BIGINT"), Json("id BIGINT, more INT")
    landed.put(b'{"id": 1}')
    landed.run(lambda records: narrow(records))  # noqa: PLW0108 - no schema is stored
    landed.put(b'{"id": "x"}', b'{"id": 2, "more": 2}')
    landed.run(lambda records: wide(records), "ignore", on_bad_record="gap")  # noqa: PLW0108
    assert landed.rows() == [{"id": 1}, {"id": 2}]


def test_another_word_is_refused(landed: Landed) -> None:
    with pytest.raises(OptionError, match="new_columns='keep' is not understood; use 'add' or 'i"):
        landed.run(Json("id BIGINT"), "keep")


def test_the_schema_is_stored_with_the_columns(landed: Landed) -> None:
    landed.run(Avro(ONE, framing="single-object"))
    (stored,) = landed.path.glob("columns/*.json")
    assert json.loads(json.loads(stored.read_text())["reader"].removeprefix("avro ")) == [
        json.dumps(ONE)
    ]


@dataclass(frozen=True)
class OfKafka:
    """What a landing asks of a source of Kafka."""

    decode: Any

    @property
    def schema(self) -> pa.Schema:
        schema: pa.Schema = self.decode(NO_RECORDS).schema
        return schema


def stored(decode: Any) -> LandedColumns:
    return LandedColumns(OfKafka(decode).schema, reader=reader_of(decode))


def reading_on(decode: Any, before: Any) -> list[str]:
    """Return the columns of a run that ignores new ones, behind those that locate a record."""
    source: Any = OfKafka(decode)
    found = without_new_columns(source, stored(before), "here").schema
    return [str(field.type) for field in found][3:]


def test_keys_are_read_with_the_schema_of_before() -> None:
    old = Json("a INT", key=Json("s STRUCT<x: INT, y: INT>"))
    new = Json("a INT, b INT", key=Json("s STRUCT<x: INT, z: INT>"))
    before = ["int32", "struct<x: int32, y: int32>"]
    assert reading_on(new, old) == before
    # A landing of before has the schema of values alone.
    alone = stored(old).reader.partition("\n")[0]
    assert old.reading_all(alone) == old
    assert old.reader == alone
    assert new.reading_all(stored(old).reader) == old


def test_the_keys_of_a_map_keep_their_type() -> None:
    old, new = (
        SimpleDecoder(pa.map_(kind, pa.int32()), key=None) for kind in (pa.int32(), pa.string())
    )
    with pytest.raises(CheckpointError, match=r"records have m\[key\] of type int32"):
        reading_on(new, old)


class SimpleDecoder(Decoder):
    """Return a column `m` of nulls."""

    def __init__(self, kind: pa.DataType, **more: Any) -> None:
        super().__init__(**more)
        object.__setattr__(self, "kind", kind)

    @property
    def reader(self) -> str:
        return "m"

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        kind = pa.struct([("m", self.kind)])  # type: ignore[attr-defined]
        return pa.nulls(len(payloads), kind), {}


PROTO = parse(
    'name: "o.proto" message_type { name: "O" field { name: "id" number: 1 type: 3 label: 1 } }'
)


@pytest.mark.parametrize(
    ("decode", "reader"),
    [
        *(
            (Avro(ONE, framing="single-object"), f"avro {text}")
            for text in ("{", "[1]", "7", '["{"]', "[" * 5_000)
        ),
        *((Json("id BIGINT"), f"json {text}") for text in ("!", "aGVsbG8=", "é")),
        *(
            (Protobuf(PROTO, "O"), f"protobuf {text}")
            for text in ("", "O", "O aGVsbG8=", "O é", "P " + "", "a b c")
        ),
    ],
)
def test_a_stored_schema_that_is_damaged_is_named(decode: Any, reader: str) -> None:
    kind = OfKafka(decode).schema
    source: Any = OfKafka(decode)
    with pytest.raises(CheckpointError) as caught:
        without_new_columns(source, LandedColumns(kind, reader=reader), "here")
    assert str(caught.value) == (
        "here cannot be continued: the schema that it stores, to read with, is damaged; continue "
        "it with new_columns='add', or land to another location"
    )
    assert caught.value.__cause__ is not None
