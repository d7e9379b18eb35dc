from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.demo.queries import MESSAGES, BatchWritten
from fanout.errors import (
    CheckpointError,
    FanOutError,
    MalformedEventError,
    OptionError,
    PositionError,
)
from fanout.kinesis.reading.decode import decode_event, decode_records
from fanout.landing.claims import Ownership
from fanout.landing.log.checkpoint_status import read_positions
from fanout.landing.log.entries import (
    BatchEntry,
    decode_entry,
    decode_origin,
    encode_entry,
    encode_origin,
)
from fanout.landing.segments.segments import SegmentFile
from fanout.testing.faults import EndEarly, RefuseCall, Stall, fault_from_json, fault_to_json
from fanout.testing.kinesis.list_shards import ListShardsError, decode_token
from fanout.testing.kinesis.polling import ShardIterator
from fanout.testing.spark.driver_process import decode_message
from tests.support.damage import damaged, documents
from tests.support.memory import peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STORED = Checkpoint(
    "kinesis:orders",
    {
        "a": SplitPosition(Split("a"), Cursor(7), ended=True, newest=1_700_000_000_000),
        "b": SplitPosition(Split("b", ("a", "x")), Horizon()),
        "c": SplitPosition(Split("c"), Timestamp(5)),
        "d": SplitPosition(Split("d"), Cursor(7, 2)),
    },
)
SEGMENT = SegmentFile(name="segments/run-000001-00000003.parquet", rows=1, size=4)
ENTRIES = [BatchEntry(3, "query", segments, STORED) for segments in ((SEGMENT,), ())]
RECORD = {
    "ApproximateArrivalTimestamp": 1795218308.174,
    "Data": "AAAA",
    "PartitionKey": "k",
    "SequenceNumber": "17",
}
CHILD = {
    "ShardId": "b",
    "ParentShards": ["a"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}
RESPONSE = {"Records": [RECORD, RECORD], "MillisBehindLatest": 7, "ChildShards": [CHILD]}
HOLDER = {"version": 1, "token": "t", "application": "a", "host": "h", "pid": 7}


class Stub:
    """The storage of a remote checkpoint that a newer run has taken over."""

    location = "s3a://lake"

    def __init__(self, newer: bytes) -> None:
        self._newer = newer

    def list(self, _: str) -> list[Any]:
        return [SimpleNamespace(name="1"), SimpleNamespace(name="2")]

    def read(self, name: str, *, limit: int) -> bytes:
        return self._newer[:limit] if name == "runs/2" else b"mark"


def read_run(data: bytes) -> str:
    loss = Ownership(cast("Any", Stub(data)), 1, b"mark", None).loss()
    assert isinstance(loss, CheckpointError)
    return str(loss)


def read_fault(data: bytes) -> Any:
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the server's private path refuses it: see tests/testing/test_json.py
    return fault_from_json(document)


def read_token(data: bytes) -> Any:
    return decode_token(base64.b64encode(data).decode())


def read_iterator(data: bytes) -> Any:
    try:
        return ShardIterator.decode(base64.b64encode(data).decode())
    except ValueError as error:
        assert "is invalid" in str(error)  # noqa: PT017 - other ValueErrors are not its own
        return None


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of JSON.

    Args:
        read: Reads bytes.
        refusal: The one error that it raises; None where it answers "nothing" instead.
        valid: Documents that it takes.
    """

    read: Callable[[bytes], Any]
    refusal: type[Exception] | None
    valid: list[Any]

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        return () if self.refusal is None else (self.refusal,)


READERS = {
    "event": Reader(
        lambda data: decode_event(data, stream="orders", shard_id="a"),
        MalformedEventError,
        [RESPONSE | {"ContinuationSequenceNumber": "17"}, RESPONSE],
    ),
    "answer of GetRecords": Reader(
        lambda data: decode_records(data, stream="orders", shard_id="a"),
        MalformedEventError,
        [RESPONSE | {"NextShardIterator": "next"}, RESPONSE],
    ),
    "positions": Reader(Checkpoint.from_json, PositionError, [json.loads(STORED.to_json())]),
    "entry": Reader(
        lambda data: decode_entry(data, 3, location="s3a://lake"),
        CheckpointError,
        [json.loads(encode_entry(entry, run=1)) for entry in ENTRIES],
    ),
    "origin": Reader(
        lambda data: decode_origin(data, location="s3a://lake"),
        CheckpointError,
        [json.loads(encode_origin(STORED.to_json()))],
    ),
    "run": Reader(read_run, None, [HOLDER]),
    "fault": Reader(
        read_fault,
        OptionError,
        [
            fault_to_json(fault)
            for fault in (EndEarly(), Stall(seconds=1.5), RefuseCall(action="ListShards"))
        ],
    ),
    "token of ListShards": Reader(
        read_token,
        ListShardsError,
        [["orders", "a", {"Type": "AT_LATEST"}, 2.5], ["orders", "a", None, 2.5]],
    ),
    "iterator": Reader(read_iterator, None, [["orders", "a", 17, 2.5]]),
    "line of the demo": Reader(
        lambda line: decode_message(line, MESSAGES),
        None,
        [json.loads(msgspec.json.encode(BatchWritten(3, 250, frozenset({"orders-1"}))))],
    ),
}
# A string of one character takes four bytes of JSON in a list, and some 60 as an object: with the
# list's own growth that is 17 times as much, and nothing that was found takes more. Text of which
# one character needs four bytes takes them for every other one: 9 times.
MOST_TIMES = 20
FIXED = 64 * 1024


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_reader_takes_what_is_valid(reader: Reader) -> None:
    for document in reader.valid:
        assert reader.read(json.dumps(document).encode()) is not None


@pytest.mark.fault("What comes is no frame or no event at all")
@pytest.mark.long
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@given(data=st.data())
def test_a_reader_raises_its_own_error_alone_and_takes_little_memory(
    reader: Reader, data: st.DataObject
) -> None:
    text = data.draw(damaged(documents(reader.valid)))
    with peak_memory() as peak, suppress(*reader.refusals):
        reader.read(text)
    assert peak.nbytes <= MOST_TIMES * len(text) + FIXED


@given(damaged(documents(READERS["positions"].valid)))
def test_positions_that_are_read_are_written_as_they_were_meant(text: bytes) -> None:
    try:
        read = Checkpoint.from_json(text)
    except PositionError:
        return
    assert Checkpoint.from_json(read.to_json()) == read


@given(damaged(documents(READERS["entry"].valid)))
def test_an_entry_that_is_read_is_written_as_it_was_meant(text: bytes) -> None:
    try:
        read = decode_entry(text, 3, location="s3a://lake")
    except CheckpointError:
        return
    assert decode_entry(encode_entry(read, run=1), 3, location="s3a://lake") == read


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("positions") / "saved.json"


@given(text=damaged(documents(READERS["positions"].valid)))
def test_a_file_of_positions_is_read_or_refused(saved: Path, text: bytes) -> None:
    saved.write_bytes(text)
    try:
        assert read_positions(str(saved)) == Checkpoint.from_json(text)
    except FanOutError as error:
        assert isinstance(error, CheckpointError)  # noqa: PT017 - both may raise


def compact(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def many(record: dict[str, Any], count: int = 1) -> bytes:
    empty = {"Data": "", "PartitionKey": "", "SequenceNumber": "1"}
    return compact(Records=[empty | record] * count, MillisBehindLatest=0)


def stored(splits: dict[str, Any]) -> bytes:
    return compact(version=1, source="s", splits=splits)


def split(**changes: Any) -> dict[str, Any]:
    return {"parents": [], "position": {"type": "horizon"}, "ended": False} | changes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("event", many({}, 2000)),
        ("event", many({"Data": "A" * 400_000})),
        ("event", many({"PartitionKey": "k" * 400_000})),
        ("event", many({"PartitionKey": "a" * 100_000 + "\U0001f600"})),
        ("event", compact(Records=[], MillisBehindLatest=0, ChildShards=[CHILD] * 1000)),
        (
            "event",
            compact(
                Records=[],
                MillisBehindLatest=0,
                ChildShards=[CHILD | {"ParentShards": ["a"] * 20_000}],
            ),
        ),
        ("positions", stored({"a": split(parents=["x"] * 20_000)})),
        ("positions", stored({str(number): split() for number in range(2000)})),
        ("origin", encode_origin(stored({"a": split(parents=["x"] * 20_000)}).decode())),
    ],
    ids=[
        "records",
        "data",
        "key",
        "wide key",
        "children",
        "parents",
        "stored parents",
        "splits",
        "resolve_start",
    ],
)
def test_what_grows_most_takes_a_small_multiple_of_its_bytes(name: str, text: bytes) -> None:
    with peak_memory() as peak:
        READERS[name].read(text)
    assert peak.nbytes <= MOST_TIMES * len(text) + FIXED
