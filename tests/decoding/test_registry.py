"""Schemas from a registry: Confluent's framing and API, references, outages, and security."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle  # noqa: TID251 - our own value, as landers get it
import re
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import fanout.decoding.registry as registry_module
from fanout.core.backoff import Backoff
from fanout.decoding import Avro, SchemaRegistry
from fanout.errors import BadRowsError, OptionError, RetryLaterError
from fanout.testing.certificate import LocalCertificate
from tests.decoding.test_avro import read
from tests.support.avro_records import ORDER, ORDERS, framed, written
from tests.support.kinesis.reading import Stream
from tests.support.schema_registry import EmbeddedRegistry, embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


def records(*payloads: bytes | None) -> pa.RecordBatch:
    rows = [
        {"value": payload, "topic": "t", "partition": 0, "offset": n}
        for n, payload in enumerate(payloads)
    ]
    places = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([("value", pa.binary()), *places]))


LATER = ORDER | {
    "fields": [*ORDER["fields"][:2], {"name": "paid", "type": "boolean", "default": False}]
}


def test_writers_of_several_schemas_are_resolved_and_keep_their_order(
    embedded: EmbeddedRegistry,
) -> None:
    one, two = (embedded.register("orders-value", each) for each in (ORDER, LATER))
    old = framed(one, written(ORDER, ORDERS))
    new = framed(two, written(LATER, [{"id": n, "name": "new", "paid": True} for n in range(10)]))
    registry = SchemaRegistry(embedded.url)
    mixed = [each for pair in zip(old, new, strict=True) for each in pair]
    found, problems = read(Avro(registry.latest("orders-value"), registry=registry), *mixed)
    assert problems == {}
    assert found == [
        row
        for n in range(10)
        for row in (
            {"id": ORDERS[n]["id"], "name": ORDERS[n]["name"], "paid": False},
            {"id": n, "name": "new", "paid": True},
        )
    ]
    assert sum(call == f"/schemas/ids/{one}" for call in embedded.calls) == 1


def test_an_id_that_the_registry_lacks_is_bad_and_asked_for_again_later(
    embedded: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = embedded.register("orders-value", ORDER)
    other = embedded.register("json-value", "{}", schemaType="JSON")
    broken = embedded.register("broken-value", '{"type": "records"}')
    body = written(ORDER, ORDERS[:1])
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    payloads = [
        *framed(number, body),
        *framed(77, body),
        *framed(other, body),
        *framed(broken, body),
        b"\1" + body[0],
        b"\0\0\0",
    ]
    found, problems = read(decode, *payloads)
    assert found == ORDERS[:1]
    no_frame = "it does not begin with 0 and the id of a schema"
    assert problems == {
        1: "the registry has no schema 77",
        2: f"the schema {other} is JSON, and not AVRO",
        3: (
            "the schema that it was written with is of no use: the schema of Avro has the unknown "
            "type records"
        ),
        4: no_frame,
        5: no_frame,
    }
    calls = len(embedded.calls)
    read(decode, *payloads)
    assert len(embedded.calls) == calls
    embedded.schemas[77] = embedded.schemas[number]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    assert read(decode, *framed(77, body)) == (ORDERS[:1], {})


@pytest.mark.parametrize("body", [b"default backend - 404", b'{"error_code": 404}', b"[]", b"{}"])
def test_a_gateway_that_answers_404_makes_no_record_bad(
    embedded: EmbeddedRegistry, body: bytes
) -> None:
    number = embedded.register("orders-value", ORDER)
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    embedded.status, embedded.answer = 404, body
    for ask in (
        lambda: decode(records(*framed(number, written(ORDER, ORDERS)))),
        lambda: SchemaRegistry(embedded.url).latest("orders-value", wait=0),
        lambda: SchemaRegistry(embedded.url).id_of("orders-value", ORDER),
    ):
        with pytest.raises(RetryLaterError, match="the schema registry answers 404"):
            ask()
    embedded.status, embedded.answer = 200, None
    assert decode(records(*framed(number, written(ORDER, ORDERS)))).num_rows == 10


async def test_partitions_that_need_the_same_schema_ask_for_it_once(
    embedded: EmbeddedRegistry,
) -> None:
    number = embedded.register("orders-value", ORDER)
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    batch = records(*framed(number, written(ORDER, ORDERS)))
    await asyncio.gather(*(decode.prepare(batch) for _ in range(20)))
    assert embedded.calls == [f"/schemas/ids/{number}"]
    assert decode(batch).num_rows == 10


def test_certificates_are_read_once_and_again_after_a_failure(
    embedded: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch, authority: Path
) -> None:
    made = []
    registry = SchemaRegistry(embedded.url, ca_file=str(authority))
    make = ssl.create_default_context

    def noted(**options: Any) -> ssl.SSLContext:
        made.append(options)
        return make(**options)

    monkeypatch.setattr(ssl, "create_default_context", noted)
    decode = Avro(ORDER, registry=registry)
    payloads = [each for n in range(9) for each in framed(n, written(ORDER, ORDERS[:1]))]
    assert len(read(decode, *payloads)[1]) == 9
    assert len(made) == 1
    embedded.register("s", ORDER)
    embedded.answer = b"<html>"
    for _ in range(2):
        with pytest.raises(RetryLaterError):
            registry.latest("s", wait=0)
    assert len(made) == 2


def _canary() -> str:
    return "canary"


def _late() -> str:
    raise RetryLaterError("the vault is sealed")


async def _later() -> str:
    return "canary"


def test_a_secret_is_not_pickled_and_a_function_that_returns_it_is(
    embedded: EmbeddedRegistry,
) -> None:
    number = embedded.register("orders-value", ORDER)
    names: dict[str, dict[str, Any]] = {"password": {"username": "key"}, "token": {}}
    for name, more in names.items():
        decode = Avro(ORDER, registry=SchemaRegistry(embedded.url, **more | {name: "canary"}))
        with pytest.raises(
            OptionError, match=f"its {name} is not pickled: pass a function {name}="
        ):
            pickle.dumps(decode)
        decode = Avro(ORDER, registry=SchemaRegistry(embedded.url, **more | {name: _canary}))
        sent = pickle.dumps(decode)
        assert b"canary" not in sent.replace(b"_canary", b"")
        other = pickle.loads(sent)  # noqa: S301
        assert other == decode
        assert read(other, *framed(number, written(ORDER, ORDERS))) == (ORDERS, {})
        wanted = "Bearer canary" if name == "token" else "Basic a2V5OmNhbmFyeQ=="
        assert embedded.authorization == wanted
        wrong = SchemaRegistry(embedded.url, **more | {name: lambda: None})
        with pytest.raises(
            OptionError, match=f"the function {name}= must return text, not NoneTyp"
        ):
            wrong.latest("orders-value")
        broken = SchemaRegistry(embedded.url, **more | {name: lambda: os.environ["NO_SUCH_CANARY"]})
        with pytest.raises(OptionError, match=f"^the function {name}= raised KeyError$") as caught:
            broken.latest("orders-value")
        assert isinstance(caught.value.__cause__, KeyError)
        late = SchemaRegistry(embedded.url, **more | {name: _late})
        with pytest.raises(RetryLaterError, match="the vault is sealed"):
            late.latest("orders-value")
        with pytest.raises(OptionError, match=f"{name} must be .* and is an async function"):
            SchemaRegistry(embedded.url, **more | {name: _later})
        with pytest.raises(OptionError, match=f"{name} must be text, or a function that returns"):
            SchemaRegistry(embedded.url, **more | {name: 5})
    registry = SchemaRegistry(embedded.url, timeout=3.0, ca_file="ca.pem")
    assert pickle.loads(pickle.dumps(registry)) == registry  # noqa: S301


def test_schemas_refer_to_others(embedded: EmbeddedRegistry) -> None:
    money = {"type": "fixed", "name": "shop.Cents", "size": 4}
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "c", "type": "shop.Cents"}]}
    cart = {
        "type": "record",
        "name": "Cart",
        "fields": [
            {"name": "item", "type": "shop.Item"},
            {"name": "items", "type": {"type": "array", "items": "shop.Item"}},
            {"name": "sum", "type": "shop.Cents"},
        ],
    }
    embedded.register("money", money)
    to_money = [{"name": "shop.Cents", "subject": "money", "version": 1}]
    embedded.register("item", item, references=to_money)
    to_item = [{"name": "shop.Item", "subject": "item", "version": 1}]
    number = embedded.register("carts", cart, references=[*to_item, *to_money])
    registry = SchemaRegistry(embedded.url)
    decode = Avro(registry.latest("carts"), registry=registry)
    body = b"aaaa" + b"\4bbbbcccc\0" + b"dddd"
    assert read(decode, *framed(number, [body]))[0] == [
        {"item": {"c": b"aaaa"}, "items": [{"c": b"bbbb"}, {"c": b"cccc"}], "sum": b"dddd"}
    ]
    assert sum("/subjects/money" in call for call in embedded.calls) == 2  # latest, and the id


def test_schemas_of_each_format_are_registered_with_those_that_they_refer_to(
    embedded: EmbeddedRegistry,
) -> None:
    registry = SchemaRegistry(embedded.url)
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}
    cart = {
        "type": "record",
        "name": "Cart",
        "fields": [{"name": "item", "type": "shop.Item"}],
    }
    registry.id_of("item", item, register=True)
    references: list[dict[str, str | int]] = [
        {"name": "shop.Item", "subject": "item", "version": 1}
    ]
    number = registry.id_of("carts", cart, register=True, references=references)
    assert embedded.schemas[int(number)]["references"] == references
    newest = registry.latest("carts")
    assert registry.id_of("carts", newest, references=references) == number
    with pytest.raises(OptionError, match="subject='carts' does not have the schema in the regis"):
        registry.id_of("carts", cart)
    decode = Avro(newest, registry=registry, schema_id=number)
    assert read(decode, *framed(int(number), [b"\6"])) == ([{"item": {"n": 3}}], {})
    for kind, schema in (("JSON", {"type": "object"}), ("PROTOBUF", 'syntax = "proto3";')):
        number = registry.id_of(kind, schema, register=True, kind=kind)  # type: ignore[arg-type]
        assert embedded.schemas[int(number)]["schemaType"] == kind
        assert registry.id_of(kind, schema, kind=kind) == number  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="does not have the schema in the registry"):
            registry.id_of(kind, schema)
    with pytest.raises(OptionError, match="kind='XML' is not understood"):
        registry.id_of("xml", "x", kind="XML")  # type: ignore[arg-type]


def test_an_error_names_the_registry_the_cause_and_a_remedy(embedded: EmbeddedRegistry) -> None:
    down = SchemaRegistry("http://127.0.0.1:1/of?key=canary")
    with pytest.raises(RetryLaterError) as caught:
        down.latest("orders-value", wait=0)
    assert str(caught.value) == (
        "the schema registry does not answer at http://127.0.0.1:1/of: [Errno 111] Connection "
        "refused; start it, or correct its URL or the network"
    )
    registry = SchemaRegistry(embedded.url, username="me", password="canary")
    for status, remedy in (
        (401, "give username and password, or token, that it accepts"),
        (302, "check that its URL is that of a registry, and its path"),
        (503, "it may start or have too much to do; see its log"),
    ):
        embedded.status = status
        with pytest.raises(RetryLaterError) as caught:
            registry.latest("orders-value", wait=0)
        assert str(caught.value) == (
            f"the schema registry answers {status} at {embedded.url}: {remedy}"
        )
    embedded.register("orders-value", ORDER)
    embedded.status, embedded.answer = 200, b"<html>"
    with pytest.raises(RetryLaterError, match=f"at {embedded.url}: what it sends is not JSON"):
        registry.latest("orders-value", wait=0)


@pytest.mark.parametrize("status", [401, 429, 500, 302])
def test_a_registry_that_does_not_answer_makes_no_record_bad(
    embedded: EmbeddedRegistry, status: int
) -> None:
    number = embedded.register("orders-value", ORDER)
    payloads = framed(number, written(ORDER, ORDERS))
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    embedded.status = status
    with pytest.raises(RetryLaterError, match=f"the schema registry answers {status}"):
        decode(records(*payloads))
    assert embedded.calls == [f"/schemas/ids/{number}"]
    embedded.status, embedded.answer = 200, b"<html>"
    with pytest.raises(RetryLaterError, match="the schema registry does not answer"):
        decode(records(*payloads))
    embedded.answer = b"[]"
    with pytest.raises(RetryLaterError, match="the schema registry answers without a schema"):
        decode(records(*payloads))
    embedded.answer = None
    assert decode(records(*payloads)).num_rows == 10
    embedded.status = 500  # what is known goes on
    assert decode(records(*payloads)).num_rows == 10
    with pytest.raises(RetryLaterError):
        SchemaRegistry(embedded.url).latest("orders-value", wait=0)
    embedded.status = 200
    with pytest.raises(OptionError, match="subject='unknown' is not in the registry http"):
        SchemaRegistry(embedded.url).latest("unknown")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"{", "the schema registry does not answer"),
        (b"\xff\xfe", "the schema registry does not answer"),
        (b"[" * 100_000, "the schema registry does not answer"),
        (b"null", "the schema registry answers without a schema"),
        (b'{"id": 1}', "the schema registry answers without a schema"),
        (
            b'{"schema": "{}", "references": [{}]}',
            "the schema registry answers with a bad reference",
        ),
        (
            b'{"schema": "{}", "references": [5]}',
            "the schema registry answers with a bad reference",
        ),
        (b'{"schema": "{}", "references": 5}', "the schema registry answers with a bad reference"),
        (
            b'{"schema": "{}", "references": [{"subject": "s", "version": "x"}]}',
            "the schema registry answers with a bad reference",
        ),
        (b'{"schema": {"type": "long"}}', "the schema registry answers without a schema"),
    ],
)
def test_a_broken_answer_makes_no_record_bad(
    embedded: EmbeddedRegistry, answer: bytes, words: str
) -> None:
    number = embedded.register("orders-value", ORDER)
    payloads = framed(number, written(ORDER, ORDERS))
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    embedded.answer = answer
    with pytest.raises(RetryLaterError, match=words):
        decode(records(*payloads))
    embedded.answer = None
    assert decode(records(*payloads)).num_rows == 10


def test_a_reference_that_is_not_there_makes_no_record_bad(embedded: EmbeddedRegistry) -> None:
    missing = [{"name": "n", "subject": "none", "version": 1}]
    number = embedded.register("orders-value", ORDER, references=missing)
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    with pytest.raises(RetryLaterError, match="the registry has no version 1 of none"):
        decode(records(*framed(number, written(ORDER, ORDERS))))


async def test_an_id_that_expires_is_not_asked_for_on_the_loop(
    embedded: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    batch = records(*framed(77, written(ORDER, ORDERS[:1])))
    await decode.prepare(batch)
    assert embedded.calls == ["/schemas/ids/77"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    with pytest.raises(BadRowsError, match="the registry has no schema 77"):
        decode(batch)
    assert len(embedded.calls) == 1
    await decode.prepare(batch)
    assert len(embedded.calls) == 2
    other = records(*framed(78, written(ORDER, ORDERS[:1])))
    with pytest.raises(RetryLaterError, match=r"on an event loop, await prepare\(records\)"):
        decode(other)
    assert len(embedded.calls) == 2


def test_credentials_are_sent_and_not_shown(embedded: EmbeddedRegistry) -> None:
    embedded.register("s", ORDER)
    basic = SchemaRegistry(embedded.url, username="key", password="canary")
    basic.latest("s")
    assert embedded.authorization == "Basic a2V5OmNhbmFyeQ=="
    bearer = SchemaRegistry(embedded.url, token="canary")
    bearer.latest("s")
    assert embedded.authorization == "Bearer canary"
    assert "canary" not in repr(basic) + repr(bearer) + repr(Avro(ORDER, registry=basic))


def test_a_registry_over_plain_http_is_asked_past_proxies(
    embedded: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.register("s", ORDER)
    with embedded_registry() as proxy:
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        SchemaRegistry(embedded.url, token="canary").latest("s")
        assert proxy.calls == []


def test_the_certificate_of_the_registry_is_checked() -> None:
    certificate = LocalCertificate()
    try:
        with embedded_registry(certificate.server_tls) as embedded:
            embedded.register("s", ORDER)
            trusting = SchemaRegistry(embedded.url, ca_file=str(certificate.path), token="t")
            assert json.loads(trusting.latest("s")[0]) == ORDER
            with pytest.raises(RetryLaterError, match="does not answer"):
                SchemaRegistry(embedded.url).latest("s", wait=0)
    finally:
        certificate.remove()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "registry:8081"}, "url must be like 'https://registry:8081'"),
        ({"url": 5}, "url must be like"),
        ({"url": "https://a:canary@registry"}, "url has a password in it"),
        ({"username": "a"}, "username and password belong together"),
        ({"username": "a", "password": "canary", "token": "canary"}, "not both"),
        ({"url": "http://registry", "token": "canary"}, "a password or a token needs https"),
        ({"token": "canary\n"}, "token must be printable ASCII"),
        ({"token": "can ary"}, "token must be printable ASCII"),
        ({"token": b"canary"}, "token must be text, or a function that returns it"),
        ({"timeout": 0}, "timeout=0 "),
    ],
)
def test_a_malformed_option_is_named(options: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        SchemaRegistry(**{"url": "https://registry"} | options)
    assert words in str(caught.value)
    assert "canary" not in str(caught.value)


async def test_a_stream_waits_for_the_registry_and_asks_it_off_the_loop(
    kinesis_server: KinesisServer, embedded: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    ask = SchemaRegistry._ask

    def noted(self: SchemaRegistry, number: int) -> Any:
        threads.append(threading.current_thread())
        return ask(self, number)

    monkeypatch.setattr(SchemaRegistry, "_ask", noted)
    embedded.status = 503
    number = embedded.register("orders-value", ORDER)
    stream = Stream(kinesis_server)
    bodies = [*framed(number, written(ORDER, ORDERS)), *framed(99, written(ORDER, ORDERS[:1]))]
    kinesis_server.put_records("orders", [("key", each) for each in bodies])
    decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
    async with stream.open(decode=decode, on_bad_record="gap") as opened:
        while len(embedded.calls) < 2:  # noqa: ASYNC110 - it is another thread that counts
            await asyncio.sleep(0.02)
        assert opened.statistics().gaps == 0
        embedded.status = 200
        drained = await opened.drain(max_records=10, first_wait=math.inf)
        found = [row for batch in drained.batches for row in batch.records["id"].to_pylist()]
        assert found == [row["id"] for row in ORDERS]
        assert opened.statistics().gaps == 1
    assert threading.main_thread() not in threads


def test_what_confluents_own_serializer_writes_is_read(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any]
) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry.avro")
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    client = confluents_client(embedded.url)
    serialize = confluent.AvroSerializer(client, json.dumps(ORDER))
    context = SerializationContext("orders", MessageField.VALUE)
    payloads = [serialize(row, context) for row in ORDERS]
    registry = SchemaRegistry(embedded.url)
    decode = Avro(registry.latest("orders-value"), registry=registry)
    assert read(decode, *payloads) == (ORDERS, {})
    with pytest.raises(BadRowsError, match="value: it does not begin with 0 and the id of a sch"):
        decode(records(b"x", *payloads))


def test_the_newest_schema_is_asked_for_again_while_a_registry_starts(
    embedded: EmbeddedRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_BACKOFF", Backoff(base=0.01, cap=0.01))
    embedded.register("orders-value", ORDER)
    embedded.status = 503
    calls = embedded.calls

    class Starting(list[str]):
        def append(self, call: str) -> None:
            super().append(call)
            if len(self) > 2:
                embedded.status = 200

    embedded.calls = Starting()
    registry = SchemaRegistry(embedded.url)
    assert json.loads(registry.latest("orders-value")[0]) == ORDER
    assert len(embedded.calls) >= 3
    waits = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(waits) >= 2
    says = r"the registry is asked again in 0\.0 s: the schema registry answers 503 at http.*log"
    assert re.fullmatch(says, waits[0])
    # What does not pass, and what is asked on an event loop, is an error at once.
    embedded.calls = calls
    for status in (401, 403, 302):
        embedded.status = status
        with pytest.raises(
            RetryLaterError, match=rf"^the schema registry answers {status} at http"
        ):
            registry.latest("orders-value")
    assert len(embedded.calls) == 3
    embedded.status = 503
    with monkeypatch.context() as on_a_loop:
        on_a_loop.setattr(registry_module, "_on_event_loop", lambda: True)
        with pytest.raises(RetryLaterError, match=r"^the schema registry answers 503 at http"):
            registry.latest("orders-value")
    assert len(embedded.calls) == 4
    with pytest.raises(RetryLaterError, match=r"^the schema registry answers 503 at http"):
        registry.latest("orders-value", wait=0.05)
    assert len(embedded.calls) > 5
    with pytest.raises(OptionError, match="wait=-1 must"):
        registry.latest("orders-value", wait=-1)
