"""`Protobuf(...).encode`: Google's runtime reads equal messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, wrappers_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout.decoding import Json, Protobuf, SchemaRegistry, protobuf_columns, protobuf_decoder
from fanout.errors import BadRowsError, OptionError
from tests.decoding.protobuf_schemas import (
    files,
    in_columns,
    message_class,
    messages,
    parse,
    serialized,
)
from tests.decoding.test_protobuf import BODIES, ORDER_CLASS, ORDERS, one_of, read
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["with ptars", "without"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "without":
        monkeypatch.setattr(protobuf_columns, "ptars", None)
    protobuf_decoder._plan.cache_clear()
    yield
    protobuf_decoder._plan.cache_clear()


@pytest.mark.long
def test_random_messages_are_written_as_google_reads_them(parser: None) -> None:
    del parser

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        file = data.draw(files())
        kind = message_class(file)
        found = data.draw(st.lists(messages(kind), min_size=1, max_size=6))
        bodies = [each.SerializeToString() for each in found]
        decode = Protobuf(serialized(file), "t.M0", into="m")
        values, problems = decode.read(pa.array([*bodies, None], pa.binary()))
        assert problems == {}
        batch = pa.RecordBatch.from_arrays([values], ["m"])
        encoded = decode.encode(batch)["value"].to_pylist()
        assert encoded.pop() is None
        expected = [in_columns(each) for each in found]
        assert [in_columns(kind.FromString(each)) for each in encoded] == expected
        assert decode.encode(batch.slice(1))["value"].to_pylist() == [*encoded[1:], None]

    check()


def test_the_bytes_are_those_that_google_writes(parser: None) -> None:
    del parser
    decode = Protobuf(ORDER_CLASS)
    values, _ = decode.read(pa.array(BODIES, pa.binary()))
    batch = pa.RecordBatch.from_struct_array(values)
    encoded = decode.encode(batch)["value"].to_pylist()
    assert [ORDER_CLASS.FromString(each) for each in encoded] == ORDERS
    assert decode.encode(batch.slice(0, 0)).num_rows == 0
    assert decode.encode(batch, column="data").schema == pa.schema([("data", pa.binary())])


@pytest.mark.parametrize(
    ("kind", "column", "good", "reason"),
    [
        ("INT32", pa.array([2**31 - 1, 2**31]), 2**31 - 1, "f is no int32"),
        ("UINT32", pa.array([2**32 - 1, 2**32]), 2**32 - 1, "f is too large for the message, or"),
        ("UINT32", pa.array([0, -1]), 0, "f is too large for the message, or below zero"),
        ("FIXED32", pa.array([7, -1]), 7, "f is too large for the message, or below zero"),
        (
            "UINT64",
            pa.array([2**64 - 1, 10**20 - 1], pa.decimal128(20)),
            2**64 - 1,
            "f is too",
        ),
        ("FIXED64", pa.array([1, -1], pa.decimal128(20)), 1, "f is too large for the message, or"),
        ("SINT64", pa.array([-(2**63), None]), -(2**63), "f is null, and the message has no null"),
        ("FLOAT", pa.array([0.5, 0.1]), 0.5, "f is no float"),
        ("DOUBLE", pa.array([2**60, 2**60 + 1]), 2.0**60, "f is no double"),
        ("STRING", pa.array(["a", None]), "a", "f is null, and the message has no null there"),
        ("BYTES", pa.array([b"\xff", None]), b"\xff", "f is null, and the message has no null"),
        ("BOOL", pa.array([True, None]), True, "f is null, and the message has no null there"),
    ],
)
def test_a_value_that_the_message_lacks_is_bad(
    kind: str, column: pa.Array, good: Any, reason: str
) -> None:
    decode = one_of(f"TYPE_{kind}")
    with pytest.raises(BadRowsError) as caught:
        decode.encode(pa.RecordBatch.from_arrays([column], ["f"]))
    assert [*caught.value.errors] == [1]
    assert str(caught.value.errors[1]).startswith(f"value: {reason}")
    encoded = caught.value.decoded["value"].to_pylist()
    assert read(decode, *encoded) == ([{"f": good}], {})


def test_zeros_are_not_written_and_the_zero_below_zero_is() -> None:
    for kind, values in (("DOUBLE", [0.0, -0.0]), ("FLOAT", [0.0, -0.0]), ("INT64", [0, 1])):
        decode = one_of(f"TYPE_{kind}")
        batch = pa.RecordBatch.from_arrays([pa.array(values)], ["f"])
        first, second = decode.encode(batch)["value"].to_pylist()
        assert first == b""
        assert second != b""


def test_enums_have_names_or_numbers_without_one() -> None:
    enum = 'enum_type { name: "E" value { name: "A" number: 0 } value { name: "B" number: -5 } }'
    decode = one_of("TYPE_ENUM", field='type_name: ".E"', file=enum)
    names = ["A", "B", "7", "-7", "C", "07", "-5", "²", "9" * 5000, None]
    with pytest.raises(BadRowsError) as caught:
        decode.encode(pa.RecordBatch.from_arrays([pa.array(names)], ["f"]))
    assert [*caught.value.errors] == [4, 5, 6, 7, 8, 9]
    assert str(caught.value.errors[4]) == "value: f is no name of the enum, and no number"
    rows, _ = read(decode, *caught.value.decoded["value"].to_pylist())
    assert rows == [{"f": "A"}, {"f": "B"}, {"f": "7"}, {"f": "-7"}]


def test_lists_maps_oneofs_and_messages_that_are_none_are_bad() -> None:
    decode = Protobuf(ORDER_CLASS)
    values, _ = decode.read(pa.array(BODIES[1:2] * 8, pa.binary()))
    rows = values.to_pylist()
    wrong: list[tuple[str, Any, str]] = [
        ("items", None, "items[] is null, and the message has no null there"),
        ("items", [{"sku": "a", "count": 1}, None], "items[] is null, and the message has no nu"),
        ("scores", [1, None], "scores[] is null, and the message has no null there"),
        ("prices", [("a", None)], "prices[].value is null, and the message has no null there"),
        ("prices", [("a", {"sku": "", "count": 1})] * 2, "prices[] has a key twice"),
        ("card", 7, "it has several members of a oneof"),
        ("first", {"sku": None, "count": 1}, "first.sku is null, and the message has no null"),
    ]
    for row, (name, value, _) in zip(rows, wrong, strict=False):
        row[name] = value
    batch = pa.RecordBatch.from_struct_array(pa.array(rows, values.type))
    with pytest.raises(BadRowsError) as caught:
        decode.encode(batch)
    errors = [str(error) for error in caught.value.errors.values()]
    assert len(errors) == len(wrong)
    for error, (_, _, reason) in zip(errors, wrong, strict=True):
        assert error.startswith(f"value: {reason}")
    assert caught.value.decoded["value"].to_pylist() == BODIES[1:2]


def test_columns_that_do_not_fit_are_named() -> None:
    decode = one_of("TYPE_INT64")
    for column, name, words in (
        (pa.array(["a"]), "f", "f is string, and the schema has int64"),
        (pa.array([1]), "g", "f is in the message, and no column of the records"),
    ):
        with pytest.raises(OptionError, match=words):
            decode.encode(pa.RecordBatch.from_arrays([column], [name]))
    lasting = Protobuf(duration_pb2.Duration, times=False)
    batch = pa.RecordBatch.from_pydict({"seconds": [1], "nanos": [2]})
    assert lasting.encode(batch)["value"].to_pylist() == [b"\x08\1\x10\2"]
    parts = (
        'field { name: "d" number: 1 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" }'
    )
    text = 'name: "d.proto" dependency: "google/protobuf/duration.proto" '
    text += f'message_type {{ name: "D" {parts} }}'
    decode = Protobuf(parse(text), "D")
    for kind in (pa.time64("us"), pa.int64(), pa.timestamp("us")):
        with pytest.raises(OptionError, match=r"d is .*, and the schema has duration"):
            decode.encode(pa.RecordBatch.from_arrays([pa.array([1], kind)], ["d"]))
    times = pa.array([-1_500_000_001, 999, 1_500_000_000, None], pa.duration("ns"))
    with pytest.raises(BadRowsError) as caught:
        decode.encode(pa.RecordBatch.from_arrays([times], ["d"]))
    assert [*caught.value.errors] == [0, 1]
    seconds = pa.array([-1_500_000, -1, 2_000_000], pa.duration("us"))
    found = decode.encode(pa.RecordBatch.from_arrays([seconds], ["d"]))["value"]
    assert decode.read(found)[0].field(0).to_pylist() == seconds.to_pylist()
    decode = one_of("TYPE_INT64", label="LABEL_REPEATED")
    with pytest.raises(OptionError, match=r"f\[\] is int64, and the message has list<item: int64"):
        decode.encode(pa.RecordBatch.from_arrays([pa.array([1])], ["f"]))
    nothing = pa.RecordBatch.from_arrays([pa.array([[], []])], ["f"])
    assert decode.encode(nothing)["value"].to_pylist() == [b"", b""]
    pairs = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    with pytest.raises(BadRowsError) as caught:
        decode.encode(pa.RecordBatch.from_arrays([pairs], ["f"]))
    assert [*caught.value.errors] == [1]
    assert read(decode, *caught.value.decoded["value"].to_pylist())[0] == [
        {"f": [1, 2]},
        {"f": [3, 4]},
    ]
    wrapper = Protobuf(wrappers_pb2.Int64Value)
    batch = pa.RecordBatch.from_arrays([pa.array([5])], ["value"])
    assert wrapper.encode(batch)["value"].to_pylist() == [b"\x08\5"]


def test_confluents_deserializer_reads_it(confluents_client: Callable[[str], Any]) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    text = """name: "n.proto" syntax: "proto3" message_type { name: "A" }
      message_type { name: "B" nested_type { name: "M"
        field { name: "f" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } } }"""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    (file,) = FileDescriptorSet.FromString(parse(text)).file
    pool = DescriptorPool()
    pool.Add(file)
    inner = GetMessageClass(pool.FindMessageTypeByName("B.M"))
    with embedded_registry() as embedded:
        client = confluents_client(embedded.url)
        for kind, row in ((inner, {"f": 7}), (ORDER_CLASS, None)):
            serialize = confluent.ProtobufSerializer(kind, client)
            context = _context("orders")
            message = ORDERS[3] if row is None else kind(**row)
            theirs = serialize(message, context)
            number = int.from_bytes(theirs[1:5], "big")
            registry = SchemaRegistry(embedded.url)
            decode = Protobuf(kind, registry=registry, schema_id=number)
            values, problems = decode.read(pa.array([theirs], pa.binary()))
            assert problems == {}
            ours = decode.encode(pa.RecordBatch.from_struct_array(values))["value"][0].as_py()
            assert confluent.ProtobufDeserializer(kind)(ours, context) == message
            assert (len(ours), ours[:7]) == (len(theirs), theirs[:7])
    with pytest.raises(OptionError, match="encode needs schema_id: id_of of the registry has it"):
        Protobuf(inner, registry=SchemaRegistry("https://r")).encode(
            pa.RecordBatch.from_pydict({"f": [1]})
        )
    with pytest.raises(OptionError, match="schema_id='x' must be a number"):
        Protobuf(inner, schema_id="x")


def _context(topic: str) -> Any:
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    return SerializationContext(topic, MessageField.VALUE)


def test_keys_are_encoded_beside() -> None:
    decode = Protobuf(ORDER_CLASS, into="order", key=Json("n INT", into="key"))
    values, _ = decode.read(pa.array([BODIES[1], None], pa.binary()))
    keys = pa.array([{"n": 1}, {"n": 2}])
    batch = pa.RecordBatch.from_arrays([values, keys], ["order", "key"])
    assert decode.encode(batch).to_pylist() == [
        {"value": BODIES[1], "key": b'{"n":1}'},
        {"value": None, "key": b'{"n":2}'},
    ]
