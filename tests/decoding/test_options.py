"""A decoder from texts, as commands and Spark have them."""

from __future__ import annotations

import json
import traceback
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tenacity import stop_after_attempt

import fanout.decoding.registry as registry_module
from fanout.cli.service_options import SchemaOptions
from fanout.decoding import Avro, Json, Protobuf, SchemaRegistry
from fanout.decoding.options import DecodeOptions
from fanout.errors import OptionError, RetryLaterError
from tests.decoding.test_protobuf import FILES
from tests.support.avro_records import ORDER
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.schema_registry import EmbeddedRegistry

DDL = "id BIGINT, name STRING"


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no registry that is down for the whole test."""
    monkeypatch.setattr(registry_module, "stop_before_delay", lambda _: stop_after_attempt(1))


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


def test_a_schema_is_a_text_or_a_file(tmp_path: Path) -> None:
    kept = {"columns": ("key",), "into": "order"}
    assert DecodeOptions(decode="json", schema=DDL, **kept).decoder(()) == Json(DDL, **kept)  # type: ignore[arg-type]
    file = tmp_path / "an order.avsc"
    file.write_text(json.dumps(ORDER))
    assert DecodeOptions(decode="avro", schema=str(file)).decoder(()) == Avro(json.dumps(ORDER))
    file.write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"an order\.avsc' cannot be read: 'utf-8' codec"):
        DecodeOptions(decode="avro", schema=str(file)).decoder(())
    long = json.dumps(ORDER | {"doc": "x" * 10_000})
    assert DecodeOptions(decode="avro", schema=long).decoder(()) == Avro(long)


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_nothing_is_shown_of_a_file_that_has_no_schema(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "passwd"
    file.write_text("canary:x:0:0:canary:/canary:/bin/canary\n")
    with pytest.raises(OptionError, match=r"passwd' is a file without a schema") as caught:
        DecodeOptions(decode=kind, schema=str(file)).decoder(())
    assert "canary" not in "".join(traceback.format_exception(caught.value)).replace(__file__, "")


def test_a_registry_gives_the_newest_schema_of_the_topic_or_of_a_subject(
    embedded: EmbeddedRegistry,
) -> None:
    embedded.register("orders-value", ORDER)
    embedded.register("other", ORDER | {"name": "Other"})
    registry = SchemaRegistry(embedded.url)
    options = {"decode": "avro", "registry": embedded.url}
    newest = Avro(json.dumps(ORDER), registry=registry)
    assert DecodeOptions(**options).decoder(["orders"]) == newest
    named = DecodeOptions(**options, subject="other").decoder(["a", "b"])
    assert named == Avro(json.dumps(ORDER | {"name": "Other"}), registry=registry)
    given = DecodeOptions(**options, schema=json.dumps(ORDER)).decoder(["a", "b"])
    assert given == newest
    assert len(embedded.calls) == 2
    embedded.status = 503
    with pytest.raises(RetryLaterError, match="the schema registry answers 503"):
        DecodeOptions(**options).decoder(["orders"])


def test_the_stored_schema_is_read_with_where_the_registry_does_not_answer(
    embedded: EmbeddedRegistry,
) -> None:
    embedded.register("orders-value", ORDER)
    registry, options = SchemaRegistry(embedded.url), {"registry": embedded.url, "into": "order"}
    avro = Avro(json.dumps(ORDER), registry=registry, into="order", key=Json("id INT"))
    protobuf = Protobuf(FILES, "shop.Order", registry=registry, into="order")
    embedded.status = 503
    kept: Any
    for decode, kept, message in (("avro", avro, None), ("protobuf", protobuf, "shop.Order")):
        given = DecodeOptions(decode=decode, **options, message=message)
        found = given.decoder(["orders"], partial(str, kept.readers))
        assert found == replace(kept, key=None)
        for other in ("", "json x", Json("id INT").readers):
            with pytest.raises(RetryLaterError, match="the schema registry answers 503"):
                given.decoder(["orders"], partial(str, other))


def test_secrets_are_in_the_environment(
    embedded: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.register("s-value", ORDER)
    monkeypatch.setenv("SCHEMA_REGISTRY_PASSWORD", "canary")
    options = {"decode": "avro", "registry": embedded.url}
    DecodeOptions(**options).decoder(["s"])
    assert embedded.authorization is None
    DecodeOptions(**options, registry_username="key").decoder(["s"])
    assert embedded.authorization == "Basic a2V5OmNhbmFyeQ=="
    basic = DecodeOptions(**options, registry_username="key").decoder(["s"])
    monkeypatch.setenv("SCHEMA_REGISTRY_TOKEN", "canary")
    bearer = DecodeOptions(**options).decoder(["s"])
    assert embedded.authorization == "Bearer canary"
    for kind, decode in (("PASSWORD", basic), ("TOKEN", bearer)):
        monkeypatch.delenv(f"SCHEMA_REGISTRY_{kind}")
        words = f"^SCHEMA_REGISTRY_{kind} is not set in this process: set it there, too, such as in"
        with pytest.raises(OptionError, match=words):
            decode.registry.latest("s-value")  # type: ignore[union-attr]


URL = "https://registry:8081"


def test_a_descriptor_set_is_a_file_and_a_message_is_named(tmp_path: Path) -> None:
    file = tmp_path / "orders.desc"
    file.write_bytes(FILES)
    given = DecodeOptions(decode="protobuf", schema=str(file), message="shop.Item", into="item")
    assert given.decoder(["orders"]) == Protobuf(FILES, "shop.Item", into="item")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"schema": DDL}, "schema is about decode: give both"),
        ({"columns": ["key"]}, "columns is about decode: give both"),
        ({"decode": "xml"}, "decode='xml' must be json, avro, protobuf"),
        (
            {"decode": "json"},
            "decode='json' needs schema, such as 'id BIGINT, name STRING'",
        ),
        ({"decode": "json", "schema": DDL, "registry": URL}, "registry is for avro and protobuf"),
        ({"decode": "json", "schema": DDL, "message": "a.B"}, "message is for decode='protobuf'"),
        (
            {"decode": "protobuf", "schema": "gone.desc"},
            (
                "schema='gone.desc' is no file: for protobuf it is what protoc writes with "
                "--include_imports --descriptor_set_out=FILE"
            ),
        ),
        ({"decode": "avro"}, "decode='avro' needs schema or registry"),
        (
            {"decode": "avro", "registry_ca_file": "ca.pem"},
            "registry_ca_file is about registry: give both",
        ),
        (
            {"decode": "avro", "registry": URL},
            (
                "subject is missing: it names the newest schema to read with, such as "
                "'orders-value'; or give schema"
            ),
        ),
        (
            {"decode": "avro", "schema": "gone.avsc"},
            "schema='gone.avsc' is neither a file nor the text of a schema",
        ),
        (
            {"decode": "avro", "registry": "https://a:canary@registry"},
            "registry has a password in it: pass registry_username and registry_password",
        ),
        (
            {"decode": "avro", "registry": URL, "registry_username": "key"},
            "registry_username has a password: set registry_password",
        ),
    ],
)
def test_what_is_wrong_names_the_option(
    given: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCHEMA_REGISTRY_PASSWORD", "SCHEMA_REGISTRY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError) as caught:
        DecodeOptions(**given).decoder(["a", "b"])
    assert str(caught.value) == sentence


def test_commands_have_each_option() -> None:
    names = [field.name for field in fields(SchemaOptions)]
    assert [field.name for field in fields(DecodeOptions) if field.name not in names] == [
        "columns",
        "into",
        "key_into",
    ]


def test_keys_have_a_decoder_of_their_own(embedded: EmbeddedRegistry, tmp_path: Path) -> None:
    typed = {"decode": "json", "schema": DDL, "key_decode": "json", "key_schema": "at DATE"}
    assert DecodeOptions(**typed).decoder(()) == Json(DDL, key=Json("at DATE", into="key"))
    named = DecodeOptions(**typed, key_into="of").decoder(())
    assert named == Json(DDL, key=Json("at DATE", into="of"))
    embedded.register("orders-value", ORDER)
    embedded.register("orders-key", '"long"')
    embedded.register("other", '"string"')
    registry = SchemaRegistry(embedded.url)
    options = {"registry": embedded.url, "key_decode": "avro"}
    newest = DecodeOptions(decode="avro", **options).decoder(["orders"])
    key = Avro('"long"', registry=registry, into="key")
    assert newest == Avro(json.dumps(ORDER), registry=registry, key=key)
    # The registry may be for one of the two alone.
    mixed = DecodeOptions(decode="json", schema=DDL, **options, key_subject="other").decoder(())
    assert mixed == Json(DDL, key=Avro('"string"', registry=registry, into="key"))
    json_keys = {"key_decode": "json", "key_schema": DDL}
    other = DecodeOptions(decode="avro", registry=embedded.url, **json_keys).decoder(["orders"])
    assert other == Avro(json.dumps(ORDER), registry=registry, key=Json(DDL, into="key"))
    file = tmp_path / "orders.desc"
    file.write_bytes(FILES)
    proto = {"key_decode": "protobuf", "key_schema": str(file), "key_message": "shop.Item"}
    found = DecodeOptions(decode="json", schema=DDL, **proto).decoder(())
    assert found == Json(DDL, key=Protobuf(FILES, "shop.Item", into="key"))


def test_keys_are_read_with_the_stored_schema_where_the_registry_does_not_answer(
    embedded: EmbeddedRegistry,
) -> None:
    registry = SchemaRegistry(embedded.url)
    key = Avro('"long"', registry=registry, into="key")
    kept = Avro(json.dumps(ORDER), registry=registry, key=key)
    embedded.status = 503
    given = DecodeOptions(decode="avro", key_decode="avro", registry=embedded.url)
    asked: list[str] = []

    def stored() -> str:
        asked.append(kept.readers)
        return kept.readers

    assert given.decoder(["orders"], stored) == kept
    assert len(asked) == 1  # it opens a landing
    with pytest.raises(RetryLaterError, match="the schema registry answers 503"):
        given.decoder(["orders"], partial(str, kept.reader))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"key_decode": "json"}, "key_decode is about decode: give both"),
        (
            {"decode": "json", "key_decode": "json", "key_schema": DDL, "columns": ["key"]},
            ("columns has 'key', where the fields of keys are: name another column in key_into"),
        ),
        ({"decode": "json", "key_schema": DDL}, "key_schema is about key_decode: give both"),
        ({"decode": "json", "key_into": "k"}, "key_into is about key_decode: give both"),
        ({"decode": "json", "key_decode": "xml"}, "key_decode='xml' must be json, avro, protobuf"),
        (
            {"decode": "json", "key_decode": "json"},
            "key_decode='json' needs key_schema, such as 'id BIGINT, name STRING'",
        ),
        (
            {"decode": "json", "key_decode": "avro", "registry": URL},
            (
                "key_subject is missing: it names the newest schema to read with, such as "
                "'orders-key'; or give key_schema"
            ),
        ),
        (
            {"decode": "json", "key_decode": "json", "key_schema": DDL, "registry": URL},
            "registry is for avro and protobuf",
        ),
        (
            {"decode": "json", "key_decode": "json", "key_schema": DDL, "key_subject": "s"},
            "key_subject is for avro and protobuf",
        ),
        (
            {"decode": "json", "key_decode": "json", "key_schema": "id NUMBER"},
            "key_schema='id NUMBER' has the unknown type NUMBER: take one of BOOLEAN",
        ),
        (
            {"decode": "json", "key_decode": "json", "key_schema": DDL, "key_into": ""},
            "key_into='' must be the name of a column",
        ),
    ],
)
def test_what_is_wrong_with_options_of_keys_names_them(
    given: dict[str, Any], sentence: str
) -> None:
    schema = {} if "decode" not in given else {"schema": DDL}
    with pytest.raises(OptionError) as caught:
        DecodeOptions(**given, **schema).decoder(())
    assert str(caught.value).startswith(sentence)
