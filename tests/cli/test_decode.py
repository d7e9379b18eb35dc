"""`fanout land` and `fanout tail` with `--decode`, from an embedded Kinesis and a registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.cli.test_land import kinesis as kinesis  # noqa: PLC0414 - a fixture
from tests.cli.test_land import land, landed
from tests.cli.test_land import stream as stream  # noqa: PLC0414 - a fixture
from tests.cli.test_tail import tail
from tests.support.avro_records import ORDER, ORDERS, framed, written
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.test_land import Stream
    from tests.support.schema_registry import EmbeddedRegistry


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


LATER = ORDER | {
    "fields": [*ORDER["fields"], {"name": "paid", "type": "boolean", "default": False}]
}


def put(stream: Stream, *payloads: bytes) -> None:
    stream.server.put_records(stream.name, [("key", each) for each in payloads])


def test_json_is_landed_and_shown(
    stream: Stream, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    put(stream, b'{"id": 1, "at": "2026-01-31T12:00:00.5Z"}', b'{"id": "x"}', b'{"id": 3}')
    typed = ["--decode", "json", "--schema", "id BIGINT, at TIMESTAMP"]
    kept = ["--column", "partitionKey", "--into", "order", "--on-bad-record", "gap"]
    assert landed(stream.source, str(tmp_path), *typed, *kept)[-1]["rows"] == 2
    table = pq.read_table(tmp_path / "segments")
    assert table.column("order").to_pylist()[1] == {"id": 3, "at": None}
    assert table.column("partitionKey").to_pylist() == ["key", "key"]
    shown = [stream.source, "--since", "earliest", "--max", "2", *typed]
    result = tail(*shown, "--filter", '"id": [13]')
    assert result.exit_code == 0, result.stderr
    lines = capfd.readouterr().out.splitlines()
    assert [line.split("\t")[2:] for line in lines] == [
        ["key", '{"id": 1, "at": "2026-01-31T12:00:00.500000Z"}'],
        ["key", '{"id": 3, "at": null}'],
    ]
    assert tail(*shown, "--json").exit_code == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["value"]["id"] for row in rows] == [1, 3]


def test_avro_is_landed_and_shown_by_a_registry(
    stream: Stream, tmp_path: Path, capfd: pytest.CaptureFixture[str], embedded: EmbeddedRegistry
) -> None:
    number = embedded.register("orders-value", ORDER)
    put(stream, *framed(number, written(ORDER, ORDERS)))
    typed = ["--decode", "avro", "--registry", embedded.url, "--subject", "orders-value"]
    assert landed(stream.source, str(tmp_path), *typed)[-1]["rows"] == len(ORDERS)
    table = pq.read_table(tmp_path / "segments")
    assert table.select(list(ORDERS[0])).to_pylist() == ORDERS
    result = tail(stream.source, "--since", "earliest", "--max", "10", "--json", *typed)
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line)["value"] for line in capfd.readouterr().out.splitlines()]
    assert rows == ORDERS


def test_while_the_registry_is_down_the_stored_schema_reads_on(
    stream: Stream, tmp_path: Path, embedded: EmbeddedRegistry
) -> None:
    number = embedded.register("orders-value", ORDER)
    put(stream, *framed(number, written(ORDER, ORDERS)))
    typed = ["--decode", "avro", "--registry", embedded.url, "--subject", "orders-value"]
    assert landed(stream.source, str(tmp_path), *typed)[-1]["rows"] == len(ORDERS)
    embedded.register("orders-value", LATER)
    put(stream, *framed(number, written(ORDER, ORDERS)))
    embedded.status = 503
    assert landed(stream.source, str(tmp_path), *typed)[-1]["rows"] == len(ORDERS)
    table = pq.read_table(tmp_path / "segments")
    assert table.select(list(ORDERS[0])).to_pylist() == ORDERS * 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--schema", "id BIGINT"], "--schema is about --decode: give both"),
        (["--column", "key"], "--column is about --decode: give both"),
        (["--decode", "avro"], "--decode avro needs --schema or --registry"),
        (["--key-decode", "json"], "--key-decode json cannot be used with kinesis://"),
        (
            ["--decode", "avro", "--registry", "https://registry"],
            (
                "--subject is missing: it names the newest schema to read with, such as "
                "'orders-value'; or give --schema"
            ),
        ),
        (
            ["--decode", "avro", "--registry", "https://a", "--registry-username", "key"],
            "--registry-username has a password: set SCHEMA_REGISTRY_PASSWORD",
        ),
        (
            ["--decode", "json", "--schema", "id NUMBER"],
            "--schema 'id NUMBER' has the unknown type NUMBER: take one of",
        ),
        (
            ["--decode", "json", "--schema", "id BIGINT", "--column", "headers"],
            "--column has 'headers', and the source has partitionKey, data,",
        ),
    ],
)
def test_what_is_wrong_is_said_in_words_of_the_options(
    given: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCHEMA_REGISTRY_PASSWORD", raising=False)
    result = land("kinesis://orders", str(tmp_path), *given)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"fanout land: {sentence}")
