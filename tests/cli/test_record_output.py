"""Records as lines of text or JSON, whatever bytes they hold."""

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanout.cli.record_output import KAFKA, KINESIS, RecordLines
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.kafka.reading.columns import SCHEMA as KAFKA_SCHEMA
from fanout.kinesis.reading.decode import SCHEMA as KINESIS_SCHEMA

TIME = datetime(2026, 11, 22, 8, 0, 0, 123456, UTC)
BIDI = {"RLE", "LRE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


def batch(schema: pa.Schema, split: str, rows: list[dict[str, Any]]) -> Batch:
    records = pa.RecordBatch.from_pylist(rows, schema=schema)
    return Batch(Split(split), records, Range(Horizon(), Cursor(1)))


def kinesis(*values: bytes, key: str = "me") -> Batch:
    rows = [
        {
            "partitionKey": key,
            "data": value,
            "stream": "orders",
            "shardId": "shardId-000000000001",
            "sequenceNumber": "49",
            "approximateArrivalTimestamp": TIME,
            "subSequenceNumber": number,
        }
        for number, value in enumerate(values)
    ]
    return batch(KINESIS_SCHEMA, "shardId-000000000001", rows)


def kafka(**fields: Any) -> Batch:
    row = {
        "key": b"me",
        "value": b"1",
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "timestamp": TIME,
        "timestampType": 0,
        "headers": [],
    }
    return batch(KAFKA_SCHEMA, "orders-3", [row | fields])


def text(of: Batch, **options: Any) -> list[str]:
    columns = KAFKA if "topic" in of.records.schema.names else KINESIS
    return list(RecordLines(columns=columns, **options).of(of))


def objects(of: Batch) -> list[dict[str, Any]]:
    lines = text(of, as_json=True)
    assert all(line.isascii() and line.removesuffix("\n").isprintable() for line in lines)
    return [json.loads(line) for line in lines]


def test_text_has_time_split_key_and_value() -> None:
    assert text(kinesis(b'{"order": "\xc3\xa9 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80"}')) == [
        '2026-11-22T08:00:00.123Z\tshardId-000000000001\tme\t{"order": "é 👩\u200d🚀"}\n'
    ]
    assert text(kafka()) == ["2026-11-22T08:00:00.123Z\torders-3\tme\t1\n"]
    assert text(kafka(key=None, value=None, timestamp=None)) == ["-\torders-3\tnull\tnull\n"]


def test_colors_leave_key_and_value_as_they_are() -> None:
    (line,) = text(kafka(), colored=True)
    assert line == "\x1b[2m2026-11-22T08:00:00.123Z\torders-3\x1b[0m\tme\t1\n"


def test_what_controls_a_terminal_is_escaped() -> None:
    value = b"\x1b]0;title\x07\x1b[2J\r\n\t\x7f\xc2\x9b31m\xe2\x80\xae\xff\x00"
    (line,) = text(kinesis(value, key="\x1b[31m"))
    assert line.split("\t")[2:] == [
        r"\x1b[31m",
        r"\x1b]0;title\x07\x1b[2J\r\n\t\x7f\x9b31m\u202e\xff\x00" + "\n",
    ]


@pytest.mark.long
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_value_ends_a_line_or_controls_a_terminal(value: bytes) -> None:
    (line,) = text(kinesis(value))
    shown = line.removesuffix("\n").split("\t", 3)[3]
    assert [one for one in shown if unicodedata.category(one) in {"Cc", "Zl", "Zp"}] == []
    assert [one for one in shown if unicodedata.bidirectional(one) in BIDI] == []


@example(b"\x7f", b"\x1b")
@given(st.binary(max_size=60), st.none() | st.binary(max_size=20))
def test_json_has_every_byte(value: bytes, key: bytes | None) -> None:
    (found,) = objects(kafka(value=value, key=key))
    for name, given_ in (("key", key), ("value", value)):
        if name in found:
            assert (found[name] is None) == (given_ is None)
            assert given_ is None or found[name].encode() == given_
        else:
            assert b64decode(found[f"{name}_base64"]) == given_


def test_json_of_kinesis_says_where_a_record_is() -> None:
    assert objects(kinesis(b"1", b"\xff")) == [
        {
            "time": "2026-11-22T08:00:00.123Z",
            "stream": "orders",
            "shard": "shardId-000000000001",
            "sequence_number": "49",
            "sub_sequence_number": number,
            "key": "me",
            **value,
        }
        for number, value in enumerate(({"value": "1"}, {"value_base64": "/w=="}))
    ]


def test_json_of_kafka_has_headers() -> None:
    headers = [
        {"key": "trace", "value": b"7"},
        {"key": "trace", "value": b"\xff"},
        {"key": "none", "value": None},
    ]
    assert objects(kafka(key=None, value=None, timestamp=None, headers=headers)) == [
        {
            "time": None,
            "topic": "orders",
            "partition": 3,
            "offset": 17,
            "key": None,
            "value": None,
            "headers": [
                {"key": "trace", "value": "7"},
                {"key": "trace", "value_base64": "/w=="},
                {"key": "none", "value": None},
            ],
        }
    ]


def test_a_decoded_value_of_every_type_has_a_line() -> None:
    far = 9_000_000 * 86400 * 10**6  # in the year 26611
    kinds: dict[str, tuple[pa.DataType, Any, Any]] = {
        "wait": (pa.duration("us"), 1_500_000, "0:00:01.500000"),
        "at": (pa.timestamp("us", "UTC"), far, "26611-03-02 00:00:00.000000Z"),
        "day": (pa.date32(), 9_000_000, "26611-03-02"),
        "hour": (pa.time64("us"), 1, "00:00:00.000001"),
        "many": (pa.list_(pa.binary()), [b"a", b"\xff"], ["a", {"base64": "/w=="}]),
        "each": (pa.map_(pa.string(), pa.binary()), [("k", b"\xff")], {"k_base64": "/w=="}),
        "days": (pa.list_(pa.date32()), [date(1970, 1, 1)], ["1970-01-01"]),
        "none": (pa.struct([("a", pa.int64())]), None, None),
    }
    fields = {
        name: pa.array([value], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
        if isinstance(value, int)
        else pa.array([value], kind)
        for name, (kind, value, _) in kinds.items()
    }
    whole = kafka()
    value = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    at = whole.records.schema.get_field_index("value")
    decoded = replace(whole, records=whole.records.set_column(at, "value", value))
    (found,) = objects(decoded)
    assert found["value"] == {name: shown for name, (_, _, shown) in kinds.items()}
    (line,) = text(decoded)
    assert json.loads(line.split("\t")[3]) == found["value"]


def test_a_time_of_kafka_that_python_lacks_is_shown() -> None:
    whole = kafka()
    at = whole.records.schema.get_field_index("timestamp")
    times = pa.array([2**58], pa.int64()).cast(whole.records.schema.field("timestamp").type)
    far = replace(whole, records=whole.records.set_column(at, "timestamp", times))
    (found,) = objects(far)
    assert found["time"].startswith("11")
    assert text(far)[0].startswith(found["time"])


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("lost", [b"lost", b"is lost\n"]),
        ("^lost$", [b"lost"]),
        ("(?i)LATE|é", [b"late \xff", b"\xc3\xa9"]),
        (r"\\xff", [b"late \xff"]),
        ("me|null", []),
    ],
)
def test_a_pattern_is_searched_in_values(pattern: str, shown: list[bytes]) -> None:
    values = [b"lost", b"is lost\n", b"late \xff", b"\xc3\xa9", b""]
    lines = text(kinesis(*values), pattern=re.compile(pattern))
    assert lines == text(kinesis(*shown))
    assert text(kafka(value=None), pattern=re.compile(pattern)) == []


def test_each_record_of_a_large_batch_has_a_line() -> None:
    values = [b"%d" % number for number in range(1000)]
    assert [line.split("\t")[3] for line in text(kinesis(*values))] == [
        f"{number}\n" for number in range(1000)
    ]
