"""`Protobuf` against Google's runtime, value by value, and what is damaged."""

from __future__ import annotations

import pickle  # noqa: TID251 - our own value, as landers get it
import random
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from fanout.decoding import Json, Protobuf, protobuf_columns, protobuf_decoder
from fanout.decoding.protobuf_columns import Parsers
from fanout.errors import OptionError
from tests.decoding.protobuf_schemas import (
    evolved,
    files,
    in_columns,
    message_class,
    messages,
    parse,
    pythonic,
    serialized,
)
from tests.decoding.test_avro import damaged

if TYPE_CHECKING:
    from pathlib import Path

ORDER = """
name: "order.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
enum_type { name: "Size" value { name: "S" number: 0 } value { name: "L" number: 1 } }
message_type { name: "Item"
  field { name: "sku" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "count" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
}
message_type { name: "Order"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "items" number: 3 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_REPEATED }
  field { name: "note" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL
    proto3_optional: true oneof_index: 1 }
  field { name: "size" number: 5 type: TYPE_ENUM type_name: ".shop.Size" label: LABEL_OPTIONAL }
  field { name: "at" number: 6 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"
    label: LABEL_OPTIONAL }
  field { name: "scores" number: 7 type: TYPE_SINT32 label: LABEL_REPEATED }
  field { name: "prices" number: 8 type: TYPE_MESSAGE type_name: ".shop.Order.PricesEntry"
    label: LABEL_REPEATED }
  field { name: "first" number: 9 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_OPTIONAL }
  field { name: "card" number: 10 type: TYPE_FIXED32 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "voucher" number: 11 type: TYPE_MESSAGE type_name: ".shop.Item"
    label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "weights" number: 12 type: TYPE_FLOAT label: LABEL_REPEATED }
  nested_type { name: "PricesEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".shop.Item"
      label: LABEL_OPTIONAL } }
  oneof_decl { name: "payment" } oneof_decl { name: "_note" }
}
"""
FILES = parse(ORDER)


def order_class() -> Any:
    (file,) = FileDescriptorSet.FromString(FILES).file
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ORDER_CLASS = order_class()


def order(number: int) -> Any:
    made = ORDER_CLASS(id=number * 10**number, name=f"é{number}", size=number % 2)
    made.scores.extend(range(-number, number))
    made.weights.extend([0.5] * number)
    for each in range(number % 4):
        made.items.add(sku="a" * each, count=each)
        made.prices[f"p{each}"].count = each
    made.at.FromMicroseconds(number * 12_345_678)
    if number % 2:
        made.note = ""
        made.voucher.sku = "v"
    else:
        made.card = 4_000_000_000
    return made


ORDERS = [order(number) for number in range(10)]
BODIES = [each.SerializeToString() for each in ORDERS]
ROWS = [in_columns(each) for each in ORDERS]


def read(decode: Protobuf, *payloads: bytes | None) -> tuple[list[Any], dict[int, str]]:
    found, problems = decode.read(pa.array(payloads, pa.binary()))
    good = [row for row in range(len(payloads)) if row not in problems]
    whole = found.take(pa.array(good, pa.int64()))
    whole.validate(full=True)
    return [pythonic(row) for row in whole.to_pylist()], dict(problems)


def one_of(kind: str, more: str = "", **others: str) -> Protobuf:
    """A message with one field of a kind, of the number 1."""
    label = others.get("label", "LABEL_OPTIONAL")
    field = f'field {{ name: "f" number: 1 type: {kind} label: {label} {others.get("field", "")} }}'
    syntax = others.get("syntax", "proto3")
    text = f'name: "t.proto" syntax: "{syntax}" message_type {{ name: "M" {field} {more} }}'
    return Protobuf(parse(text + others.get("file", "")), "M")


def repeated_until_vectorised(payloads: list[bytes]) -> list[bytes]:
    """So many of each that they are read at once."""
    return [payload for payload in payloads for _ in range(70)]


@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_messages_are_read_as_google_reads_them(data: st.DataObject) -> None:
    file = data.draw(files())
    kind = message_class(file)
    found = data.draw(st.lists(messages(kind), min_size=1, max_size=6))
    bodies = [each.SerializeToString() for each in found]
    # One behind the other is one merged message.
    bodies += [one + other for one, other in zip(bodies, bodies[::-1], strict=True)]
    bodies *= data.draw(st.sampled_from([1, 12, 70]))
    rows, problems = read(Protobuf(serialized(file), "t.M0"), *bodies)
    assert problems == {}
    expected = {body: in_columns(kind.FromString(body)) for body in bodies}
    for row, body in zip(rows, bodies, strict=True):
        assert row == expected[body]


@pytest.mark.long
@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_messages_are_resolved_by_the_numbers_of_their_fields(data: st.DataObject) -> None:
    writer = data.draw(files())
    reader = data.draw(evolved(writer))
    found = data.draw(st.lists(messages(message_class(writer)), min_size=1, max_size=6))
    kind = message_class(reader)
    bodies = [each.SerializeToString() for each in found] * data.draw(st.sampled_from([1, 70]))
    rows, problems = read(Protobuf(serialized(reader), "t.M0"), *bodies)
    assert problems == {}
    expected = {body: in_columns(kind.FromString(body)) for body in bodies}
    for row, body in zip(rows, bodies, strict=True):
        assert row == expected[body]


def test_a_descriptor_is_bytes_a_file_or_a_class(tmp_path: Path) -> None:
    path = tmp_path / "orders.desc"
    path.write_bytes(FILES)
    for decode in (
        Protobuf(FILES, "shop.Order"),
        Protobuf(path, "shop.Order"),
        Protobuf(str(path), "shop.Order"),
        Protobuf(ORDER_CLASS),
        Protobuf(ORDER_CLASS, "shop.Order"),
    ):
        assert read(decode, *BODIES) == (ROWS, {})


def test_rows_without_a_payload_are_null() -> None:
    decode = Protobuf(FILES, "shop.Order")
    found, problems = decode.read(pa.array([None, BODIES[1], None], pa.binary()))
    assert found.is_null().to_pylist() == [True, False, True]
    assert problems == {}
    assert decode.read(pa.array([], pa.binary()))[0].type == found.type
    assert decode.read(pa.array([None], pa.binary()))[0].to_pylist() == [None]
    part = pa.array([b"\xff", BODIES[2], None, BODIES[1]], pa.binary())[1:3]
    assert [pythonic(row) for row in decode.read(part)[0].to_pylist()] == [ROWS[2], None]
    everything = decode.read(pa.array([b""], pa.binary()))[0].to_pylist()
    assert pythonic(everything) == [in_columns(ORDER_CLASS())]


NO_ORDER = "it is no shop.Order"
MOST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"


@pytest.mark.parametrize("copies", [1, 200])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x08", NO_ORDER),
        (b"\x80", NO_ORDER),
        (b"\x08\x80", NO_ORDER),
        (b"\x08" + b"\xff" * 10 + b"\1", NO_ORDER),
        (b"\x12\x02a", NO_ORDER),
        (b"\x12" + MOST, NO_ORDER),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", NO_ORDER),
        (b"\x12\1\xff", "name is not UTF-8"),
        (b"\x1a\3\x0a\1\xff", "items[].sku is not UTF-8"),
        (b"\x1a\3\x0a\5a", NO_ORDER),
        (b"\x55\0\0\0", NO_ORDER),
        (b"\x08\1" + MOST, NO_ORDER),
        (b"\0\0", NO_ORDER),
        (b"\x0f", NO_ORDER),
        (b"\x0c", NO_ORDER),
        (b"\xa3\6", NO_ORDER),
        (b"\xa3\6\x08", NO_ORDER),
        (b"\xa3\6\xac\6", NO_ORDER),
        (b"\xa3\6" * 200 + b"\xa4\6" * 200, NO_ORDER),
        (b"\x13" * 200_000, NO_ORDER),
        (b"\xa2\6\5", NO_ORDER),
        (b"\x0d\0\0\0\0", "id has another type than in the descriptor"),
        (b"\x0a\1\0", "id has another type than in the descriptor"),
        (b"\x18\1", "items[] has another type than in the descriptor"),
        (b"\x1a\2\x08\1", "items[].sku has another type than in the descriptor"),
        (b"\x42\2\x10\1", "prices[].value has another type than in the descriptor"),
        (b"\x3a\2\1\x80", NO_ORDER),
        (b"\x62\5\0\0\0\0\0", NO_ORDER),
        (b"\x3a\x0b" + b"\xff" * 10 + b"\1", NO_ORDER),
        (b"\x38" + b"\xff" * 9 + b"\1", "scores[] is too large for int32"),
        (b"\x28" + b"\x80" * 5 + b"\1", "size is too large for string"),
        (b"\x32\5\x10\xff\xff\xff\x7f", "at has nanoseconds, which timestamp[us, tz=UTC] has not"),
        (b"\x32\6\x10\x80\x94\xeb\xdc\3", "at is no timestamp, or a too large one"),
        (b"\x32\x0a\x08" + b"\xff" * 8 + b"\x7f", "at is no timestamp, or a too large one"),
    ],
)
def test_a_damaged_record_is_bad_and_moves_no_other(body: bytes, reason: str, copies: int) -> None:
    decode = Protobuf(FILES, "shop.Order")
    found, problems = read(decode, *BODIES[:5], *[body] * copies, *BODIES[5:])
    assert found == ROWS
    assert problems == dict.fromkeys(range(5, 5 + copies), reason)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_20_000_damaged_records_are_bad_or_what_google_reads() -> None:
    generator = random.Random(1)
    decode, bad = Protobuf(FILES, "shop.Order"), 0
    good = BODIES + [_example(messages(ORDER_CLASS), seed) for seed in range(20)]
    for size in [500] * 30 + [10_000 // 2]:
        payloads = [damaged(generator.choice(good), generator) for _ in range(size)]
        payloads[::50] = BODIES[: len(payloads[::50])] * (len(payloads[::50]) // 10)
        found, problems = decode.read(pa.array(payloads, pa.binary()))
        kept = [row for row in range(len(payloads)) if row not in problems]
        whole = found.take(pa.array(kept))
        whole.validate(full=True)
        bad += len(problems)
        assert not {*range(0, size, 50)} & problems.keys()
        for row, value in zip(kept, whole, strict=True):
            assert _agrees(value, payloads[row])
    assert bad > 8_000


def _agrees(value: Any, body: bytes) -> bool:
    try:
        found = pythonic(value.as_py())
    except (ValueError, OverflowError):  # Python has no such time
        return True
    return bool(found == in_columns(ORDER_CLASS.FromString(body)))


def _example(strategy: Any, seed: int) -> bytes:
    found = []

    @settings(max_examples=1, database=None, deadline=None, derandomize=False)
    @hypothesis_seed(seed)
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value.SerializeToString())

    draw()
    return bytes(found[-1])


@pytest.mark.parametrize("copies", [1, 70])
@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("TYPE_UINT32", b"\x08\xff\xff\xff\xff\x0f", 2**32 - 1),
        ("TYPE_UINT32", b"\x08\xff\xff\xff\xff\x1f", None),
        ("TYPE_UINT64", b"\x08" + MOST, 2**64 - 1),
        ("TYPE_FIXED32", b"\x0d" + b"\xff" * 4, 2**32 - 1),
        ("TYPE_FIXED64", b"\x09" + b"\xff" * 8, 2**64 - 1),
        ("TYPE_INT32", b"\x08" + MOST, -1),
        ("TYPE_INT32", b"\x08\xff\xff\xff\xff\x0f", None),  # not -1, as Google's runtime has it
        ("TYPE_INT32", b"\x08\xff\xff\xff\xff\xf7\xff\xff\xff\xff\x01", None),
        ("TYPE_INT64", b"\x08" + MOST, -1),
        ("TYPE_SINT64", b"\x08" + MOST, -(2**63)),
        ("TYPE_BOOL", b"\x08\x81\x00", True),
        ("TYPE_BOOL", b"\x08\2", None),
        ("TYPE_INT64", b"\x08\1\x08\2\x08\3", 3),
        ("TYPE_BYTES", b"\x0a\1a\x0a\1\xff", b"\xff"),
    ],
)
def test_a_number_is_equal_or_bad(kind: str, body: bytes, value: object, copies: int) -> None:
    found, problems = read(one_of(kind), *[body] * copies)
    if value is None:
        assert problems == dict.fromkeys(range(copies), problems[0])
        assert "f is too large for " in problems[0]
    else:
        assert found == [{"f": value}] * copies


# A tenth byte has one bit of 64, and parsers drop the others.
@pytest.mark.parametrize("copies", [1, 70])
@pytest.mark.parametrize("tenth", [b"\x02", b"\x03", b"\x7f"])
@pytest.mark.parametrize("kind", ["INT32", "INT64", "UINT64", "SINT64", "BOOL"])
def test_a_number_of_more_than_64_bits_is_bad(kind: str, tenth: bytes, copies: int) -> None:
    reasons = {"it has a number of more than 64 bits"}
    for first in (b"\x80", b"\x81", b"\xff"):
        number = first * 9 + tenth
        for label, body in (
            ("OPTIONAL", b"\x08"),
            ("REPEATED", b"\x0a\x0a"),
            ("REPEATED", b"\x08"),
        ):
            decode = one_of(f"TYPE_{kind}", label=f"LABEL_{label}")
            problems = read(decode, *[body + number] * copies)[1]
            assert problems.keys() == {*range(copies)}
            assert {*problems.values()} <= reasons | {"f[] is too large for bool"}


@pytest.mark.parametrize("copies", [1, 70])
def test_text_that_looks_like_a_number_of_more_than_64_bits_is_text(copies: int) -> None:
    for text in ("\b王小明a", "王小明", " 王小明 王小明", "a" * 8 + "\x7f王小明\2"):
        made = ORDER_CLASS(id=-1, name=text, note=text)
        made.items.add(sku=text, count=-2)
        bodies = [made.SerializeToString()] * copies
        assert read(Protobuf(ORDER_CLASS), *bodies) == ([in_columns(made)] * copies, {})


def test_bytes_that_look_like_a_number_of_more_than_64_bits_are_none_wherever_they_are() -> None:
    fields = "".join(
        f'field {{ name: "{name}" number: {number} type: TYPE_{kind} label: 1 {more} }}'
        for name, number, kind, more in (
            ("a", 2047, "SFIXED64", ""),
            ("n", 2, "INT64", ""),
            ("b", 3, "BYTES", ""),
            ("g", 4, "GROUP", 'type_name: ".M.G"'),
        )
    )
    group = """nested_type { name: "G"
      field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_REPEATED options { packed: true } }
      field { name: "x" number: 2 type: TYPE_FIXED32 label: LABEL_OPTIONAL } }"""
    text = f'name: "t.proto" syntax: "proto2" message_type {{ name: "M" {fields} {group} }}'
    decode = Protobuf(parse(text), "M")
    a, number = b"\xf9\x7f" + b"\xff" * 8, b"\xff" * 9
    unknown = b"\x2b\x0a\x0a" + number + b"\x7f" + b"\x15\1\2\3\4\x2c"
    good = [a + a, b"\x1a\x0a" + number + b"\2" + b"\x1a\0", unknown]
    good += [b"\x23" + a + a + b"\x0a\x0c\5\5" + number + b"\1\x24"]
    bad = [b"\x23\x0a\x0c\5\5" + number + b"\3\x24", a + b"\x10" + number + b"\3" + a]
    bad += [b"\x28" + number + b"\3", b"\x2b\x28" + number + b"\3\x2c"]
    assert read(decode, *good, *bad)[1] == dict.fromkeys(
        range(4, 8), "it has a number of more than 64 bits"
    )


@pytest.mark.skipif(find_spec("ptars") is None, reason="Google's runtime reads all of them then")
def test_packed_fields_of_one_number_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parsers, "_one_by_one", None)
    made = ORDER_CLASS(scores=[7], weights=[0.5], id=-1)
    found = read(Protobuf(ORDER_CLASS), *[made.SerializeToString()] * 100)
    assert found == ([in_columns(made)] * 100, {})


def test_numbers_are_packed_or_not_whatever_the_descriptor_says() -> None:
    for label in ("", "options { packed: false }"):
        decode = one_of("TYPE_INT32", label="LABEL_REPEATED", field=label)
        bodies = [b"\x0a\3\1\xac\2", b"\x08\1\x08\xac\2", b"\x08\1\x0a\2\xac\2", b"\x0a\0"]
        rows, problems = read(decode, *repeated_until_vectorised(bodies))
        assert problems == {}
        assert rows == [{"f": [1, 300]}] * 210 + [{"f": []}] * 70


def test_an_enum_is_its_name_or_the_number_that_has_none() -> None:
    values = [("A", 0), ("B", 1), ("C", 1), ("N", -2)]
    names = " ".join(f'value {{ name: "{name}" number: {number} }}' for name, number in values)
    enum = f'enum_type {{ name: "E" options {{ allow_alias: true }} {names} }}'
    for syntax in ("proto2", "proto3"):
        decode = one_of("TYPE_ENUM", field='type_name: ".E"', file=enum, syntax=syntax)
        bodies = [b"\x08\1", b"\x08\x07", b"\x08\xfe" + MOST[1:], b""]
        expected = ["B", "7", "N", "A" if syntax == "proto3" else None]
        assert read(decode, *bodies) == ([{"f": name} for name in expected], {})


def test_of_a_oneof_the_last_one_is_there() -> None:
    voucher = b"\x5a\2\x10\5"
    card = b"\x55\1\0\0\0"
    bodies = [card + voucher, voucher + card, voucher + card + b"\x5a\3\x0a\1x", voucher * 2]
    decode = Protobuf(FILES, "shop.Order")
    for payloads in (bodies, repeated_until_vectorised(bodies)):
        rows, problems = read(decode, *payloads)
        assert problems == {}
        expected = [in_columns(ORDER_CLASS.FromString(body)) for body in payloads]
        assert rows == expected
    voucher_and_card = [(row["voucher"], row["card"]) for row in rows[::70]]
    assert voucher_and_card == [
        ({"sku": "", "count": 5}, None),
        (None, 1),
        ({"sku": "x", "count": 0}, None),
        ({"sku": "", "count": 5}, None),
    ]


def test_what_proto2_requires_is_there_and_its_defaults_are_read() -> None:
    decode = one_of("TYPE_INT32", label="LABEL_REQUIRED", syntax="proto2")
    assert read(decode, b"\x08\1", b"") == ([{"f": 1}], {1: "f is required, and not there"})
    decode = one_of("TYPE_STRING", syntax="proto2", field='default_value: "d"')
    assert read(decode, b"", b"\x0a\0") == ([{"f": "d"}, {"f": ""}], {})
    decode = one_of("TYPE_INT32", syntax="proto2")
    assert read(decode, b"", b"\x08\0") == ([{"f": None}, {"f": 0}], {})


def test_groups_are_structs() -> None:
    group = 'nested_type { name: "F" field { name: "a" number: 1 type: TYPE_INT32 label: 1 } }'
    decode = one_of("TYPE_GROUP", group, syntax="proto2", field='type_name: ".M.F"')
    bodies = [b"\x0b\x08\5\x0c", b"\x0b\x13\x08\1\x14\x08\5\x0c", b"\x0b\x0c", b""]
    for payloads in (bodies, repeated_until_vectorised(bodies)):
        rows, problems = read(decode, *payloads)
        assert problems == {}
        values = [row["f"] for row in rows[:: len(rows) // 4]]
        assert values == [{"a": 5}, {"a": 5}, {"a": None}, None]


def test_times_with_nanoseconds_are_read_as_structs() -> None:
    decode = Protobuf(ORDER_CLASS, times=False)
    body = ORDER_CLASS()
    body.at.seconds, body.at.nanos = -1, 999_999_999
    rows, problems = read(decode, body.SerializeToString(), b"")
    assert problems == {}
    assert [row["at"] for row in rows] == [{"seconds": -1, "nanos": 999_999_999}, None]


def test_a_wrapper_is_a_value_or_null_and_alone_a_message() -> None:
    decode = Protobuf(wrappers_pb2.Int64Value)
    assert read(decode, b"\x08\5", b"") == ([{"value": 5}, {"value": 0}], {})


@pytest.mark.long
def test_one_record_of_100_000_items_among_small_ones_is_read_at_once() -> None:
    many = ORDER_CLASS()
    many.scores.extend(range(100_000))
    for number in range(100_000):
        many.items.add(count=number)
    unpacked = b"".join(b"\x38\2" for _ in range(100_000))
    rows, problems = read(
        Protobuf(ORDER_CLASS), many.SerializeToString(), *BODIES, unpacked, b"\xa0\6\1" * 100_000
    )
    assert problems == {}
    assert [len(row["items"]) for row in rows] == [100_000, *(n % 4 for n in range(10)), 0, 0]
    assert rows[0]["scores"] == list(range(100_000))
    assert rows[11]["scores"] == [1] * 100_000


@pytest.mark.long
def test_few_bad_records_cost_no_look_at_each_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    one_by_one = Parsers._one_by_one

    def counted(self: Parsers, payloads: Any, rows: Any) -> Any:
        looked.append(len(rows))
        return one_by_one(self, payloads, rows)

    monkeypatch.setattr(Parsers, "_one_by_one", counted)
    bodies = BODIES * 1000
    for row, body in ((5, b"\xff"), (5_000, b"\x12\1\xff"), (7_000, b"\x0d\0\0\0\0")):
        bodies[row] = body
    assert read(Protobuf(ORDER_CLASS), *bodies)[1] == {
        5: NO_ORDER,
        5_000: "name is not UTF-8",
        7_000: "id has another type than in the descriptor",
    }
    if find_spec("ptars") is not None:
        assert sum(looked) < 200


def test_without_ptars_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_columns, "ptars", None)
    protobuf_decoder._plan.cache_clear()
    try:
        assert read(Protobuf(ORDER_CLASS), *BODIES * 10) == (ROWS * 10, {})
    finally:
        protobuf_decoder._plan.cache_clear()


RECURSIVE = """name: "t.proto" syntax: "proto3"
message_type { name: "Node" field { name: "next" number: 1 type: TYPE_MESSAGE type_name: ".Node"
  label: LABEL_REPEATED } }
message_type { name: "Nothing" }
message_type { name: "Two" field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"descriptor": 5}, "descriptor=5 must be a descriptor set as bytes, the path of its file"),
        ({"descriptor": int}, " must be a descriptor set as bytes"),
        ({"descriptor": "/nowhere/x"}, "descriptor='/nowhere/x' must be a descriptor set as bytes"),
        (
            {"descriptor": b"\xff"},
            "descriptor is no descriptor set, or lacks a file that it imports: ",
        ),
        ({"descriptor": b""}, "message='shop.Order' must be one of the descriptor's, such as none"),
        (
            {"message": "shop.Cart"},
            "message='shop.Cart' must be one of the descriptor's, such as shop.Item, shop.Order",
        ),
        ({"message": None}, "message is missing: the descriptor has shop.Item"),
        (
            {"descriptor": parse('name: "a.proto" dependency: "b.proto"')},
            "descriptor is no descriptor set, or lacks a file that it imports: ",
        ),
        (
            {"descriptor": parse('name: "a.proto" message_type { name: "A B" }')},
            "descriptor is no descriptor set, or lacks a file that it imports: ",
        ),
        (
            {"descriptor": parse(RECURSIVE), "message": "Node"},
            "the message Node contains itself at next[], and columns have an end: leave the field",
        ),
        (
            {"descriptor": parse(RECURSIVE), "message": "Nothing"},
            "the message Nothing has no fields",
        ),
        ({"registry": "http://registry"}, "registry must be a SchemaRegistry"),
    ],
)
def test_a_malformed_option_is_named(options: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Protobuf(**{"descriptor": FILES, "message": "shop.Order"} | options)
    assert words in str(caught.value)


def test_it_is_a_value_that_other_processes_get() -> None:
    decode = Protobuf(ORDER_CLASS, into="order", key=Json("id INT", into="key"))
    assert pickle.loads(pickle.dumps(decode)) == decode  # noqa: S301
    assert hash(decode) == hash(Protobuf(ORDER_CLASS, into="order", key=Json("id INT", into="key")))
    assert "descriptor" not in repr(decode)
    assert len(repr(replace(decode, key=None))) < 200


def test_a_record_is_bad_whatever_others_are_in_its_batch() -> None:
    """Two packed fields with one number each, and a skipped field as long as what they save."""
    text = """name: "m.proto" syntax: "proto3" message_type { name: "M"
      field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_REPEATED }
      field { name: "b" number: 2 type: TYPE_INT32 label: LABEL_REPEATED }
      field { name: "c" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "m" number: 4 type: TYPE_MESSAGE type_name: ".M2" label: LABEL_OPTIONAL } }
    message_type { name: "M2"
      field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_REPEATED }
      field { name: "c" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL } }"""
    decode = Protobuf(parse(text), "M")
    good = b"\x1a\x01a"
    for bad in (
        b"\x08\x05\x10\x06\x18\x01",
        b"\x08\x05\x22\x02\x08\x06\x18\x01",
        b"\x08\x05\x22\x04\x08\x06\x18\x01",
    ):
        for others in (0, 100):
            rows, problems = read(decode, bad, *[good] * others)
            assert (len(rows), list(problems)) == (others, [0])
    packed = b"\x0a\x01\x05\x12\x01\x06"
    rows, problems = read(decode, *[packed] * 100)
    assert problems == {}
    assert rows == [{"a": [5], "b": [6], "c": "", "m": None}] * 100
