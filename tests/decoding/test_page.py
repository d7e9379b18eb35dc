"""The examples and the tables of docs/typed-records.md."""

from __future__ import annotations

import asyncio
import re
from dataclasses import fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

import fanout
from fanout import Checkpoint
from fanout.cli.land import land
from fanout.decoding import Avro, GlueSchemaRegistry, Json, Protobuf, SchemaRegistry
from fanout.spark.dataframe.source_options import DECODE_KEYS, TYPED
from tests.decoding.test_protobuf import FILES
from tests.support.pages import defined_by, page, python_blocks
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

TEXT = page("typed-records.md")
(
    EXAMPLE,
    SCHEMAS,
    AVRO,
    SECRET,
    GLUE,
    PROTOBUF,
    FORGOTTEN,
    _,
    ENCODED,
    SINKS,
    REGISTERED,
    REFERRING,
    IN_HEADERS,
) = python_blocks("typed-records.md")
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
MAIN = defined_by(EXAMPLE)["main"]


@pytest.mark.usefixtures("aws")
async def test_the_example_prints_typed_records(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders", shards=2)
    async with asyncio.TaskGroup() as tasks:
        example = tasks.create_task(MAIN())
        while "{'id': 1, 'amount': 9.5}" not in capsys.readouterr().out:
            kinesis_server.put_records("orders", [("customer", b'{"id": 1, "amount": 9.5}')])
            await asyncio.sleep(0.05)
        example.cancel()


def test_the_three_forms_of_a_schema_are_one() -> None:
    names: dict[str, Any] = {}
    exec(SCHEMAS, names)  # noqa: S102 - the page is ours
    one, two, three = names["same"]
    assert one == two == three


def test_the_page_lists_the_options_and_the_types() -> None:
    for kind in (Json, Avro, Protobuf, SchemaRegistry, GlueSchemaRegistry):
        for field in fields(kind):
            assert f"`{field.name}`" in TEXT or field.name == "schema"
    rows = re.findall(r"^\| ((?:`[A-Z][^`]*` ?)+)\| ", TEXT, re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", "".join(rows)):
        sql = name.replace("(p, s)", "(5, 2)").replace(", ...", "").replace("T>", "INT>")
        Json(f"a {sql}")
    assert len(rows) == 11


def test_the_page_lists_the_options_of_commands_and_of_spark() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)`.* \| `(\w+)`.* \|.*\|.*\|$", TEXT, re.MULTILINE)
    assert {spark for _, spark in rows} == {*TYPED, *DECODE_KEYS, "newColumns"}
    own = [name.removeprefix("--").replace("-", "_") for name, _ in rows]
    known = signature(land).parameters  # of which it shows those of groups one by one
    assert {*own} <= {*known} | {"column"}


def test_the_example_of_avro_names_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchemaRegistry, "latest", lambda *_: (SCHEMA,))
    names: dict[str, Any] = {}
    exec(AVRO, names)  # noqa: S102 - the page is ours
    assert names["source"].schema.names == ["topic", "partition", "offset", "id"]


def test_the_example_of_protobuf_names_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchemaRegistry, "latest", lambda *_: FILES)
    names: dict[str, Any] = {}
    exec(PROTOBUF, names)  # noqa: S102 - the page is ours
    assert names["source"].schema.names[:5] == ["topic", "partition", "offset", "id", "name"]


def test_the_example_of_glue_names_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GlueSchemaRegistry, "latest", lambda *_: (SCHEMA,))
    names: dict[str, Any] = {}
    exec(GLUE, names)  # noqa: S102 - the page is ours
    assert names["source"].schema.names[-1] == "id"


def test_the_example_of_a_secret_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "canary")
    names: dict[str, Any] = {}
    exec(SECRET, names)  # noqa: S102 - the page is ours
    assert names["registry"].password() == "canary"


def test_the_example_of_references_registers_a_schema() -> None:
    with embedded_registry() as embedded:
        embedded.register("item-value", '{"type": "fixed", "name": "shop.Item", "size": 1}')
        url = embedded.url
        names: dict[str, Any] = {}
        text = REFERRING.replace("https://registry:8081", url)
        exec(text, names)  # noqa: S102 - the page is ours
        assert embedded.schemas[names["number"]]["references"] == [names["item"]]


def test_the_example_forgets_the_stored_schema(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = Checkpoint(source="kafka:one", reader="avro {}")
    (tmp_path / "positions.json").write_text(saved.to_json())
    names: dict[str, Any] = {}
    exec(FORGOTTEN, names)  # noqa: S102 - the page is ours
    assert Checkpoint.from_json(names["resume"]) == replace(saved, reader="")


def test_the_example_writes_guids_into_headers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.avsc").write_text(SCHEMA)
    with embedded_registry() as embedded:
        number = embedded.register("orders-value", SCHEMA)
        names: dict[str, Any] = {}
        text = IN_HEADERS.replace("https://registry:8081", embedded.url)
        exec(text, names)  # noqa: S102 - the page is ours
        guid = embedded.guid(number)
    trace = {"key": "trace", "value": b"7"}
    batch = pa.RecordBatch.from_pydict({"id": [1], "headers": [[trace]]})
    (row,) = names["orders"].encode(batch).to_pylist()
    assert row["value"] == b"\2"
    head = {"key": "__value_schema_id", "value": b"\1" + UUID(guid).bytes}
    assert row["headers"] == [trace, head]
    batch = pa.RecordBatch.from_pydict({"id": [1], "headers": [["trace"]]})
    with pytest.raises(fanout.OptionError, match="headers must be a list of structs"):
        names["orders"].encode(batch)


def test_the_example_prints_encoded_records(capsys: pytest.CaptureFixture[str]) -> None:
    exec(ENCODED, {})  # noqa: S102 - the page is ours
    rows, names = capsys.readouterr().out.splitlines()
    for line in (rows[1:].split("}, {")[0] + "}", names):
        assert f"`{line}`" in " ".join(TEXT.split())


def test_the_examples_of_sinks_and_ids_name_what_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SchemaRegistry, "id_of", lambda *_, **__: 7)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.avsc").write_text(SCHEMA)
    names: dict[str, Any] = {}
    exec(REGISTERED, names)  # noqa: S102 - the page is ours
    batch = pa.RecordBatch.from_pydict({"id": [1]})
    assert names["orders"].encode(batch).to_pylist() == [{"value": b"\0\0\0\0\7\2"}]
    exec(SINKS, names)  # noqa: S102 - the page is ours
    rows = pa.RecordBatch.from_pydict({"id": [1], "amount": [0.5], "partitionKey": ["k"]})
    (found,) = names["encoded"]([rows])
    assert found.to_pylist() == [{"partitionKey": "k", "data": b'{"id":1,"amount":0.5}'}]
    names_of_spark = re.search(r'mapInArrow\(encoded, "(\w+) string, (\w+) binary"\)', SINKS)
    assert names_of_spark is not None
    assert found.schema.names == [*names_of_spark.groups()]  # Spark goes by their order
