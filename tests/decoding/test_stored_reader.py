"""A stream that resumes has the columns of its start, although a registry has newer ones by now."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import fanout
from fanout.core.checkpoint import LONGEST_READER
from fanout.core.record_decoder import reader_of, with_stored_reader
from fanout.decoding import Avro, Json, Protobuf, SchemaRegistry
from fanout.decoding.registry import Newest
from fanout.errors import PositionError, SplitFailedError
from fanout.kafka import Cluster, KafkaSource, Security
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.columns import stored_reader, with_reader_of_start
from fanout.landing.storage.local_storage import LocalStorage
from tests.decoding.protobuf_schemas import parse
from tests.decoding.test_evolution import ONE, THREE, TWO, WIDER, avro, order
from tests.support.kinesis.reading import Stream
from tests.support.schema_registry import EmbeddedRegistry, embedded_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fanout.decoding.decoder import Decoder
    from fanout.testing.kinesis.server import KinesisServer


NO_REGISTRY = SchemaRegistry("http://127.0.0.1:1")
NO_CLUSTER = Cluster("127.0.0.1:1", security=Security(protocol="PLAINTEXT"))
A_LONG = order(a="long")
PLACES = ("shardId", "sequenceNumber", "subSequenceNumber")


@pytest.fixture
def stream(kinesis_server: KinesisServer) -> Stream:
    return Stream(kinesis_server)


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


def newest(embedded: EmbeddedRegistry) -> Avro:
    registry = SchemaRegistry(embedded.url)
    return Avro(registry.latest("orders-value"), registry=registry)


async def found(embedded: EmbeddedRegistry) -> Avro:
    return await asyncio.to_thread(newest, embedded)


def put(stream: Stream, *payloads: bytes) -> None:
    stream.server.put_records(stream.name, [("key", each) for each in payloads])


async def read(
    stream: Stream, decode: Any, resume: str | None, count: int, **more: Any
) -> tuple[list[dict[str, Any]], str]:
    """Read records, and return them without their places, and the positions behind them."""
    rows: list[dict[str, Any]] = []
    async with stream.open(decode=decode, resume=resume, **more) as reading:
        while True:
            drained = await reading.drain(first_wait=0.5, max_wait=0.0)
            for batch in drained.batches:
                rows += [dict([*row.items()][3:]) for row in batch.records.to_pylist()]
            await reading.acknowledge(drained)
            assert drained.positions.to_json() == reading.positions
            if len(rows) >= count:
                return rows, reading.positions


async def test_the_columns_are_those_of_the_start_while_a_schema_evolves_three_times(
    stream: Stream, embedded: EmbeddedRegistry
) -> None:
    put(stream, *avro(embedded, ONE, {"id": 1, "name": "a"}))
    rows, positions = await read(stream, await found(embedded), None, 1)
    assert rows == [{"id": 1, "name": "a"}]
    put(stream, *avro(embedded, TWO, {"id": 2, "name": "b", "paid": True}))
    rows, positions = await read(stream, await found(embedded), positions, 1)
    assert rows == [{"id": 2, "name": "b"}]
    put(stream, *avro(embedded, THREE, {"id": 3, "paid": True}))
    rows, positions = await read(stream, await found(embedded), positions, 1)
    assert rows == [{"id": 3, "name": "none"}]
    # What does not fit is a bad record: a double that became no long.
    put(stream, *avro(embedded, WIDER, {"id": 4.0, "name": "d"}))
    with pytest.raises(SplitFailedError) as caught:
        await read(stream, await found(embedded), positions, 1)
    causes = [caught.value, caught.value.__cause__, caught.value.__cause__.__cause__]  # type: ignore[union-attr]
    assert "it was written with another schema" in str(causes[-1].__cause__)  # type: ignore[union-attr]


async def test_the_schema_of_a_resolved_start_is_that_of_its_moment(
    stream: Stream, embedded: EmbeddedRegistry
) -> None:
    put(stream, *avro(embedded, ONE, {"id": 1, "name": "a"}))
    origin = await fanout.resolve_start(stream.source(decode=await found(embedded)))
    embedded.register("orders-value", TWO)
    rows, _ = await read(stream, await found(embedded), origin, 1)
    assert rows == [{"id": 1, "name": "a"}]


async def test_positions_without_a_schema_are_continued_with_that_of_the_source(
    stream: Stream, embedded: EmbeddedRegistry
) -> None:
    put(stream, *avro(embedded, ONE, {"id": 1, "name": "a"}))
    _, positions = await read(stream, await found(embedded), None, 1)
    before = replace(fanout.Checkpoint.from_json(positions), reader="").to_json()
    assert "reader" not in json.loads(before)
    put(stream, *avro(embedded, TWO, {"id": 2, "name": "b", "paid": True}))
    rows, positions = await read(stream, await found(embedded), before, 1)
    assert rows == [{"id": 2, "name": "b", "paid": True}]
    assert json.loads(json.loads(positions)["reader"].removeprefix("avro ")) == [json.dumps(TWO)]


def _reason(positions: str, error: PositionError) -> str:
    """Return why stored positions cannot be resumed."""
    begun, _, reason = str(error).partition(" cannot be resumed: ")
    assert begun == f"the stored positions of {fanout.Checkpoint.from_json(positions).source}"
    return reason


async def test_a_schema_of_the_user_adds_columns_and_lacks_none(stream: Stream) -> None:
    put(stream, b'{"id": 1, "more": 1}')
    _, positions = await read(stream, Json("id BIGINT"), None, 1)
    put(stream, b'{"id": 2, "more": 2}')
    rows, positions = await read(stream, Json("id BIGINT, more INT"), positions, 1)
    assert rows == [{"id": 2, "more": 2}]
    for ddl, has in (("id BIGINT", "does not have it"), ("id BIGINT, more STRING", "has string")):
        with pytest.raises(PositionError) as caught:
            await read(stream, Json(ddl), positions, 1)
        assert _reason(positions, caught.value) == (
            f"the records so far have the column more of type int32, and this source {has}; read "
            f"with a schema that has the columns of before, or resume without the stored schema, "
            f"by replace(Checkpoint.from_json(resume), reader='').to_json() of dataclasses"
        )


async def test_what_is_no_schema_of_such_a_decoder_is_an_error(stream: Stream) -> None:
    _, positions = await read(stream, Json("id BIGINT"), None, 0)
    for damaged in ("json !", "json aGVsbG8="):
        resume = replace(fanout.Checkpoint.from_json(positions), reader=damaged).to_json()
        with pytest.raises(
            PositionError, match="the schema to read with that is stored there is d"
        ):
            await read(stream, Json("id INT"), resume, 1)
    deep = replace(fanout.Checkpoint.from_json(positions), reader="avro " + "[" * 5_000).to_json()
    with pytest.raises(PositionError, match="the schema to read with that is stored there is d"):
        await read(stream, Avro(ONE, framing="single-object"), deep, 1)
    another = "resumed: the records so far were read with a schema of another format or message; d"
    for decode in (Avro(ONE), Avro(ONE, framing="single-object")):
        with pytest.raises(PositionError, match=another):
            await read(stream, decode, positions, 1)


@pytest.mark.parametrize("decode", [None, lambda records: records])
async def test_a_stored_schema_needs_a_decoder(stream: Stream, decode: Any) -> None:
    _, positions = await read(stream, Json("id BIGINT"), None, 0)
    with pytest.raises(PositionError) as caught:
        await read(stream, decode, positions, 1)
    assert _reason(positions, caught.value) == (
        "the records so far were read with a schema that is stored, and decode has none by now; "
        "decode as before, or resume without the stored schema, by "
        "replace(Checkpoint.from_json(resume), reader='').to_json() of dataclasses"
    )
    # Without it, any function reads on.
    put(stream, b'{"id": 1}')
    forgotten = replace(fanout.Checkpoint.from_json(positions), reader="").to_json()
    rows, _ = await read(stream, lambda records: records.select([*PLACES, "data"]), forgotten, 1)
    assert rows == [{"data": b'{"id": 1}'}]


async def test_positions_whose_schema_is_refused_name_their_stream(stream: Stream) -> None:
    _, positions = await read(stream, Json("id BIGINT"), None, 0)
    other = replace(fanout.Checkpoint.from_json(positions), source="kinesis/other").to_json()
    for decode in (None, Json("id STRING")):
        with pytest.raises(PositionError, match=r"^the stored positions of kinesis/other cannot"):
            await read(stream, decode, other, 1)


@pytest.mark.long
def test_a_query_stores_the_schema_of_very_many_columns(tmp_path: Path) -> None:
    fields = order(**{f"column_{number}": ("string", "") for number in range(7300)})
    wide: Any = KafkaSource(cluster=NO_CLUSTER, topics="orders", decode=Avro(fields))
    assert 400_000 < len(reader_of(wide.decode)) < LONGEST_READER
    storage = LocalStorage(tmp_path)
    for _ in range(2):
        with claim(storage, ThisProcess("a test")) as ownership:
            source, keep = with_reader_of_start(storage, wide)
            keep(ownership)
        assert source == wide
    assert stored_reader(storage) == reader_of(wide.decode)
    # What JSON makes longer than a file is not stored.
    quotes = order(a="long") | {"doc": '"' * 131_000}
    long = replace(wide, decode=Avro(quotes))
    assert reader_of(long.decode)
    again = LocalStorage(tmp_path / "again")
    with claim(again, ThisProcess("a test")) as ownership:
        with_reader_of_start(again, long)[1](ownership)
    stored_reader(again)


def continued(now: Any, before: Decoder) -> list[str]:
    """Return the columns behind the places of records that go on after those of a decoder."""
    source = KafkaSource(cluster=NO_CLUSTER, topics="orders", decode=now)
    found = with_stored_reader(source, before.readers, "forget it")
    return list(found.schema.names[3:])


def keyed(key: Decoder | None) -> Json:
    return Json("id BIGINT", key=None if key is None else replace(key, into="key"))


def message(name: str) -> Protobuf:
    fields = 'field { name: "a" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }'
    file = f'name: "o.proto" syntax: "proto3" message_type {{ name: "{name}" {fields} }}'
    found = FileDescriptorSet.FromString(parse(file)).file[0].SerializeToString()
    return Protobuf(Newest((base64.b64encode(found).decode(),)), registry=NO_REGISTRY)


@pytest.mark.parametrize(
    ("now", "before", "reason"),
    [
        (Json("a BIGINT"), Avro(A_LONG), "another format or message"),
        (Json("a STRING"), Avro(A_LONG), "another format or message"),
        (message("Other"), message("Order"), "another format or message"),
        (None, Avro(A_LONG), "and decode has none for keys by now; decode as before, or forget it"),
        (Json("a STRING"), Json("a BIGINT"), "have the column key of type struct<a: int64>"),
    ],
)
def test_keys_go_on_as_values_do(now: Decoder | None, before: Decoder, reason: str) -> None:
    assert continued(keyed(before), keyed(before)) == ["id", "key"]
    assert continued(keyed(before), keyed(None)) == ["id", "key"]
    with pytest.raises(PositionError, match=reason):
        continued(keyed(now), keyed(before))


@pytest.mark.parametrize(
    "kind", [lambda schema: schema, lambda schema: Newest([json.dumps(schema)])]
)
def test_avro_without_frames_has_the_columns_of_before_and_its_own_schema(kind: Any) -> None:
    before = Avro(kind(A_LONG))
    now = Avro(kind(order(b="string", a="long")))
    assert continued(now, before) == ["b", "a"]  # records are read as they are written
    assert keyed_columns(now, before) == ["b", "a"]
    other = Avro(kind(order(b="string")))
    with pytest.raises(PositionError, match="have the column a of type int64, and this source doe"):
        continued(other, before)


def keyed_columns(now: Decoder, before: Decoder) -> list[str]:
    """Return the columns of keys that go on."""
    value = Json("id BIGINT")
    return continued(replace(value, key=now), replace(value, key=before))[1:]


def test_keys_of_the_newest_schema_are_read_as_before_beside_values_of_the_user(
    embedded: EmbeddedRegistry,
) -> None:
    embedded.register("orders-value", ONE)
    before = Json("id INT", key=newest(embedded))
    embedded.register("orders-value", TWO)
    now = Json("id INT, more INT", key=newest(embedded))
    found = now.reading_all(before.readers, lambda each: each.is_newest)
    assert found == replace(now, key=before.key)
    alone = replace(now, key=None)
    assert alone.reading_all("", lambda each: each.is_newest) == alone


def test_descriptors_of_a_registry_are_known_as_the_newest_ones(
    embedded: EmbeddedRegistry,
) -> None:
    files = parse(
        'name: "o.proto" syntax: "proto3" message_type { name: "O" field { name: "id" number: 1 '
        "type: TYPE_INT64 label: LABEL_OPTIONAL } }"
    )
    file = FileDescriptorSet.FromString(files).file[0].SerializeToString()
    embedded.register("o-value", base64.b64encode(file).decode(), schemaType="PROTOBUF")
    registry = SchemaRegistry(embedded.url)
    decoder = Protobuf(registry.latest("o-value"), "O", registry=registry)
    for each in (decoder, copy.deepcopy(decoder), replace(decoder, into="o")):
        assert each.is_newest
    assert not decoder.reading(decoder.reader).is_newest
    other = decoder.reader.replace(" O ", " Other ")
    assert decoder.reading(other) is decoder
    assert not Protobuf(files, "O").is_newest
