"""Schemas from AWS Glue: moto's registry, the framing of AWS's serializers, and bombs of zlib."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from fanout.decoding import Avro, GlueSchemaRegistry, Json, SchemaRegistry
from fanout.decoding.registry import Found
from fanout.errors import OptionError, RetryLaterError, SetupError
from tests.decoding.test_avro import read
from tests.support.avro_records import ORDER, ORDERS, written
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

LATER = ORDER | {
    "fields": [*ORDER["fields"][:2], {"name": "paid", "type": "boolean", "default": False}]
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def _keys(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del aws
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture
def glue(endpoint: str) -> Iterator[Any]:
    """Another client of the registry."""
    client = boto3.client(
        "glue",
        endpoint_url=endpoint,
        region_name="eu-west-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    yield client
    client.close()


@pytest.fixture
def registry(endpoint: str, glue: Any) -> GlueSchemaRegistry:
    name = f"registry-{uuid4()}"
    glue.create_registry(RegistryName=name)
    return GlueSchemaRegistry(name, region="eu-west-1", endpoint_url=endpoint)


# As SerializationDataEncoder.java of awslabs/aws-glue-schema-registry writes it: version 3, the
# compression (0, or 5 for zlib), the UUID with its highest byte first, and the bytes.
def framed(version: int | str, bodies: list[bytes], *, compressed: bool = False) -> list[bytes]:
    head = bytes([3, 5 if compressed else 0]) + UUID(str(version)).bytes
    return [head + (zlib.compress(body) if compressed else body) for body in bodies]


def create(glue: Any, registry: GlueSchemaRegistry, name: str, schema: Any, kind: str) -> str:
    made = glue.create_schema(
        RegistryId={"RegistryName": registry.name},
        SchemaName=name,
        DataFormat=kind,
        Compatibility="BACKWARD",
        SchemaDefinition=json.dumps(schema),
    )
    return str(made["SchemaVersionId"])


def test_records_of_several_versions_are_resolved_compressed_or_not(
    registry: GlueSchemaRegistry, glue: Any
) -> None:
    one = create(glue, registry, "orders", ORDER, "AVRO")
    two = registry.id_of("orders", LATER, register=True)
    new = written(LATER, [{"id": n, "name": "new", "paid": True} for n in range(10)])
    old = written(ORDER, ORDERS)
    payloads = [*framed(one, old), *framed(two, new), *framed(two, new, compressed=True)]
    decode = Avro(registry.latest("orders"), registry=registry)
    found, problems = read(decode, *payloads)
    assert problems == {}
    assert found == [
        *({"id": row["id"], "name": row["name"], "paid": False} for row in ORDERS),
        *([{"id": n, "name": "new", "paid": True} for n in range(10)] * 2),
    ]


def test_an_id_that_the_registry_lacks_is_bad_and_asked_for_again_later(
    registry: GlueSchemaRegistry, glue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = create(glue, registry, "orders", ORDER, "AVRO")
    other = create(glue, registry, "json", {"type": "object"}, "JSON")
    unknown, body = str(uuid4()), written(ORDER, ORDERS[:1])
    decode = Avro(ORDER, registry=registry)
    good = framed(version, body)
    payloads = [*good, *framed(unknown, body), *framed(other, body), b"\0" + good[0], good[0][:17]]
    payloads.append(b"\3\1" + good[0][2:])
    found, problems = read(decode, *payloads)
    no_frame = "it does not begin with 3 and the id of a version of a schema"
    assert found == ORDERS[:1]
    assert problems == {
        1: f"the registry has no version {unknown} of a schema",
        2: f"the schema {other} is JSON, and not AVRO",
        **dict.fromkeys((3, 4, 5), no_frame),
    }
    asked: list[UUID] = []
    ask = GlueSchemaRegistry._ask

    def noted(self: GlueSchemaRegistry, number: UUID) -> Any:
        asked.append(number)
        return ask(self, number)

    monkeypatch.setattr(GlueSchemaRegistry, "_ask", noted)
    read(decode, *payloads)
    assert asked == []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    read(decode, *payloads)
    assert asked == [UUID(unknown)]


def test_bombs_and_what_zlib_has_not_written_are_bad() -> None:
    decode = Json("a STRING", framing="glue")
    version = str(uuid4())
    good = framed(version, [b'{"a": "x"}'], compressed=True)
    bomb = zlib.compress(bytes(50 << 20))
    largest = b'{"a": "' + b"x" * ((10 << 20) - 9) + b'"}'
    too_large = framed(version, [largest + b" "], compressed=True)
    wrong = [
        good[0][:18] + each for each in (b"", b"not zlib", good[0][18:-1], good[0][18:] + b"!")
    ]
    tracemalloc.start()
    found, problems = decode.read(
        pa.array([*good, good[0][:18] + bomb, *wrong, *too_large, None, *good])
    )
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()
    too_much = "it has more than 10485760 bytes behind its compression"
    damaged = "it is not what zlib has compressed"
    assert problems == {1: too_much, **dict.fromkeys(range(2, 6), damaged), 6: too_much}
    assert found.to_pylist() == [{"a": "x"}, *[None] * 7, {"a": "x"}]
    values, problems = decode.read(pa.array(framed(version, [largest], compressed=True)))
    assert problems == {}
    assert len(values[0]["a"].as_py()) == (10 << 20) - 9


def test_another_compression_than_those_of_glue_is_bad() -> None:
    decode, body = Json("a STRING", framing="glue"), b'{"a": "x"}'
    (plain,), (compressed,) = (
        framed(str(uuid4()), [body], compressed=each) for each in (False, True)
    )
    others = [b"\3" + bytes([each]) + plain[2:] for each in range(1, 256) if each != 5]
    for payloads in ([plain, *others], [plain, compressed, *others]):
        found, problems = decode.read(pa.array(payloads, pa.binary()))
        assert [*problems] == [*range(len(payloads) - 254, len(payloads))]
        assert {*problems.values()} == {
            "it does not begin with 3 and the id of a version of a schema"
        }
        assert found.to_pylist()[: len(payloads) - 254] == [{"a": "x"}] * (len(payloads) - 254)


def test_the_records_of_a_batch_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.decoding.decoder._MOST_OF_BATCH", 25)
    payloads = framed(str(uuid4()), [b'{"a": "x"}'] * 3, compressed=True)
    decode = Json("a STRING", framing="glue")
    with pytest.raises(ValueError, match=r"more than 25 bytes .*: decode fewer at once"):
        decode.read(pa.array(payloads))
    bad = payloads[0][:-1]
    found, problems = decode.read(pa.array([*payloads[:2], bad]))
    assert found.to_pylist() == [{"a": "x"}, {"a": "x"}, None]
    assert [*problems] == [2]


def test_a_schema_is_registered_and_found(registry: GlueSchemaRegistry) -> None:
    with pytest.raises(OptionError, match="subject='orders' is not in the registry registry-"):
        registry.latest("orders")
    with pytest.raises(OptionError, match="subject='orders' does not have the schema in the reg"):
        registry.id_of("orders", ORDER)
    one, two = (registry.id_of("orders", each, register=True) for each in (ORDER, LATER))
    assert one != two
    other = registry.id_of("json", {"type": "object"}, register=True, kind="JSON")
    assert registry.answer(UUID(str(other))).problem == f"the schema {other} is JSON, and not AVRO"
    with pytest.raises(OptionError, match="references are for a SchemaRegistry: Glue has none"):
        registry.id_of("orders", ORDER, references=[{"name": "a"}])
    assert registry.id_of("orders", json.dumps(ORDER), register=True) == one
    assert [registry.id_of("orders", each) for each in (ORDER, LATER)] == [one, two]
    orders = Avro(ORDER, registry=registry, schema_id=one)
    kind = orders.read(pa.array([], pa.binary()))[0].type
    rows = pa.RecordBatch.from_struct_array(pa.array(ORDERS, kind))
    encoded = orders.encode(rows)["value"]
    assert encoded.to_pylist() == framed(one, written(ORDER, ORDERS))
    assert orders.read(encoded)[0].to_pylist() == ORDERS
    with pytest.raises(OptionError, match="the registry of AWS Glue refuses the schema"):
        registry.id_of("orders", "{", register=True)
    nowhere = GlueSchemaRegistry("none", region="eu-west-1", endpoint_url=registry.endpoint_url)
    with pytest.raises(OptionError, match="does not have the schema in the registry none"):
        nowhere.id_of("orders", ORDER, register=True)


@pytest.mark.parametrize(
    ("status", "error"),
    [("PENDING", RetryLaterError), ("FAILURE", OptionError), ("DELETING", OptionError)],
)
def test_a_version_that_is_not_available_has_no_id_yet(
    registry: GlueSchemaRegistry,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    error: type[Exception],
) -> None:
    answer = {"SchemaVersionId": str(uuid4()), "Status": status}
    monkeypatch.setattr(GlueSchemaRegistry, "_call", lambda *_, **__: answer)
    with pytest.raises(error):
        registry.id_of("orders", ORDER, register=True)


def test_an_id_ends_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[UUID] = []

    def ask(_: GlueSchemaRegistry, number: UUID) -> Found:
        asked.append(number)
        return Found(schemas=(json.dumps(ORDER),))

    monkeypatch.setattr(GlueSchemaRegistry, "_ask", ask)
    version = UUID(bytes=b"\0" + b"ab" * 6 + b"\0\0\0")
    decode = Avro(ORDER, registry=GlueSchemaRegistry("zeros"))
    assert read(decode, *framed(str(version), written(ORDER, ORDERS))) == (ORDERS, {})
    assert asked == [version]


async def test_it_is_asked_off_the_loop(
    registry: GlueSchemaRegistry, glue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = create(glue, registry, "orders", ORDER, "AVRO")
    payloads = pa.array(framed(version, written(ORDER, ORDERS)))
    decode = Avro(ORDER, registry=registry)
    with pytest.raises(RetryLaterError, match=r"await prepare\(records\) of the decoder"):
        decode.read(payloads)
    ask, ticked = GlueSchemaRegistry._ask, threading.Event()

    def ask_after_ticks(registry: GlueSchemaRegistry, number: UUID) -> Found:
        assert ticked.wait(PATIENCE), "the loop stands still"
        return ask(registry, number)

    async def tick() -> None:
        for _ in range(4):
            await asyncio.sleep(0.001)
        ticked.set()

    monkeypatch.setattr(GlueSchemaRegistry, "_ask", ask_after_ticks)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tick())
        await decode.fetch(payloads)
    assert decode.read(payloads)[0].to_pylist() == ORDERS


def test_a_registry_that_does_not_answer_makes_no_record_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads = framed(str(uuid4()), written(ORDER, ORDERS))
    down = GlueSchemaRegistry(region="eu-west-1", endpoint_url="http://127.0.0.1:1")
    with pytest.raises(
        RetryLaterError,
        match=r"AWS Glue answers EndpointConnectionE.*http://127\.0\.0\.1:1.*check the region",
    ):
        read(Avro(ORDER, registry=down), *payloads)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SetupError, match="no AWS credentials were found"):
        down.latest("orders")
    with pytest.raises(SetupError, match="no AWS region is known"):
        GlueSchemaRegistry().latest("orders")


def test_what_another_serializer_of_glue_writes_is_read_and_reads_ours(
    registry: GlueSchemaRegistry, glue: Any
) -> None:
    # A port of AWS's serializers, which are in Java.
    serde = pytest.importorskip("aws_schema_registry")
    avro = pytest.importorskip("aws_schema_registry.avro")
    codec = pytest.importorskip("aws_schema_registry.codec")
    client = serde.SchemaRegistryClient(glue, registry_name=registry.name)
    schema, serialize = avro.AvroSchema(json.dumps(ORDER)), serde.KafkaSerializer(client)
    payloads = [serialize.serialize("orders", (row, schema)) for row in ORDERS]
    version = registry.id_of("orders-value", str(schema))
    compressed = [
        codec.encode(body, UUID(str(version)), compression="zlib")
        for body in written(ORDER, ORDERS)
    ]
    orders = Avro(registry.latest("orders-value"), registry=registry, schema_id=version)
    assert read(orders, *payloads, *compressed) == (ORDERS * 2, {})
    columns = pa.RecordBatch.from_struct_array(orders.read(pa.array(payloads))[0])
    again = orders.encode(columns)["value"].to_pylist()
    assert again == payloads
    deserialize = serde.KafkaDeserializer(client)
    assert [deserialize.deserialize("orders", each).data for each in again] == ORDERS


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GlueSchemaRegistry(""), "name='' must be a string, and not empty"),
        (lambda: GlueSchemaRegistry(region=5), "region=5 must be a string, and not empty"),  # type: ignore[arg-type]
        (
            lambda: GlueSchemaRegistry(endpoint_url="http://glue.example"),
            "the Glue endpoint on glue.example would be used without TLS",
        ),
        (
            lambda: Avro(ORDER, registry=GlueSchemaRegistry(), framing="confluent"),
            "framing='confluent' needs a registry, a SchemaRegistry",
        ),
        (
            lambda: Avro(ORDER, registry=SchemaRegistry("https://r"), framing="glue"),
            "framing='glue' needs a registry, a GlueSchemaRegistry",
        ),
    ],
)
def test_a_malformed_option_is_named(make: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert words in str(caught.value)


def test_threads_are_left_behind_by_no_call(registry: GlueSchemaRegistry) -> None:
    registry.id_of("orders", ORDER, register=True)
    before = set(threading.enumerate())
    registry.latest("orders")
    left = set(threading.enumerate()) - before
    assert [each for each in left if "process_request" not in each.name] == []  # the server's
