from __future__ import annotations

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import BadFrameError, OptionError
from fanout.kafka.shuffle.frames import (
    CONTROL,
    LONGEST_CONTROL,
    MAX_GENERATION,
    MAX_PRODUCERS,
    ControlFrame,
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
    decode_control,
    encode,
    encode_control,
)
from tests.support.kafka.shuffle_decoding import read_values

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[3] / "docs" / "shuffle.md"
VECTORS = re.findall(r"^\| `(\w+\(.+\))` \| `([0-9a-f ]+)` \|$", PAGE.read_text(), re.MULTILINE)
KINDS: dict[str, Callable[..., ControlFrame]] = {
    "watermark": WatermarkFrame,
    "hello": HelloFrame,
    "idle": IdleFrame,
    "end": EndFrame,
}
MS = pa.timestamp("ms", "UTC")

numbers = st.integers(0, MAX_PRODUCERS - 1)
generations = st.integers(0, MAX_GENERATION)


@st.composite
def hellos(draw: st.DrawFn) -> HelloFrame:
    producer = draw(numbers)
    count = draw(st.integers(producer + 1, MAX_PRODUCERS))
    return HelloFrame(producer, draw(generations), count, draw(st.integers(1, 2**31 - 1)))


controls = st.one_of(
    st.builds(WatermarkFrame, numbers, generations, st.integers(-(2**63), 2**63 - 1)),
    hellos(),
    st.builds(IdleFrame, numbers, generations),
    st.builds(EndFrame, numbers, generations),
)


def called(text: str) -> tuple[str, dict[str, Any]]:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    return call.func.id, {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


def test_the_page_has_an_example_of_each_tag() -> None:
    assert {bytes.fromhex(value)[1] for _, value in VECTORS} == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(("frame", "value"), VECTORS)
def test_the_examples_of_the_page_are_so(frame: str, value: str) -> None:
    kind, fields = called(frame)
    if kind != "record":
        expected = KINDS[kind](**fields)
        assert encode_control(expected) == bytes.fromhex(value)
        assert decode_control(bytes.fromhex(value)) == expected
        return
    times = pa.array([fields["millis"]], MS)
    assert encode(pa.array([b"k"]), pa.array([fields["value"]]), times).to_pylist() == [
        bytes.fromhex(value)
    ]
    records = read_values([bytes.fromhex(value)])
    assert records["value"].to_pylist() == [fields["value"].encode()]
    assert records["eventTime"].cast(MS).to_pylist() == times.to_pylist()
    assert records[CONTROL].to_pylist() == [None]


@given(controls)
def test_what_producers_say_survives(frame: ControlFrame) -> None:
    value = encode_control(frame)
    assert decode_control(value) == frame
    assert len(value) <= LONGEST_CONTROL


@pytest.mark.parametrize(
    "frame",
    [
        WatermarkFrame(0, 0, 2**63),
        WatermarkFrame(MAX_PRODUCERS, 0, 0),
        WatermarkFrame(-1, 0, 0),
        WatermarkFrame(0, MAX_GENERATION + 1, 0),
        WatermarkFrame(0, 2**64, 0),
        IdleFrame(0, -1),
        EndFrame(2**32, 0),
        HelloFrame(1, 0, 1, 1),
        HelloFrame(0, 0, 0, 1),
        HelloFrame(0, 0, MAX_PRODUCERS + 1, 1),
        HelloFrame(0, 0, 1, 0),
        HelloFrame(0, 0, 1, 2**31),
    ],
    ids=str,
)
def test_what_no_reader_would_accept_is_not_written(frame: ControlFrame) -> None:
    with pytest.raises(OptionError):
        encode_control(frame)


def changed(value: str, at: int, hex_: str) -> bytes:
    """Overwrite bytes of an example."""
    new = bytearray.fromhex(value)
    new[at : at + len(bytes.fromhex(hex_))] = bytes.fromhex(hex_)
    return bytes(new)


HELLO = dict(VECTORS)["hello(producer=1, generation=7, producers=3, partitions=12)"]
IDLE = dict(VECTORS)["idle(producer=1, generation=7)"]
MARK = dict(VECTORS)["watermark(producer=0, generation=7, millis=-1)"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"", "it has 0 bytes, and a frame has 2 at least"),
        (b"\x01", "it has 1 bytes, and a frame has 2 at least"),
        (b"\x00\x00", "it has version 0, and this library reads version 1"),
        (b'{"a":1}', "it has version 123, and this library reads version 1"),
        (b"\x01\x06" + bytes(20), "it has the tag 6, and there are 0 to 5"),
        (b"\x01\xff", "it has the tag 255, and there are 0 to 5"),
        (b"\x01\x00" + bytes(7), "it is a record whose time is cut short"),
        (
            b"\x01\x00\x7f" + bytes(7),
            "it is a record whose time lies outside of the years 1 to 9999",
        ),
        (bytes.fromhex(MARK)[:-1], "it is of the kind 'watermark', and is cut short"),
        (bytes.fromhex(MARK) + b"x", "it is of the kind 'watermark', and goes on behind its end"),
        (bytes.fromhex(HELLO)[:-4], "it is of the kind 'hello', and is cut short"),
        (bytes.fromhex(HELLO) + b"x", "it is of the kind 'hello', and goes on behind its end"),
        (bytes.fromhex(IDLE)[:3], "it is of the kind 'idle', and is cut short"),
        (b"\x01\x05" + bytes(20), "it is of the kind 'end', and goes on behind its end"),
        (
            changed(IDLE, 2, "000003e8"),
            "it is of the kind 'idle', and is of producer 1000; there are 1000 at most",
        ),
        (
            changed(IDLE, 6, "80"),
            f"it is of the kind 'idle', and is of a generation above {MAX_GENERATION}",
        ),
        (
            changed(HELLO, 14, "000003e9"),
            "it is of the kind 'hello', and announces 1001 producers; there are 1000 at most",
        ),
        (
            changed(HELLO, 14, "00000001"),
            "it is of the kind 'hello', and announces 1 producers, but is of producer 1",
        ),
        (
            changed(HELLO, 18, "00000000"),
            "it is of the kind 'hello', and announces 0 partitions",
        ),
        (
            changed(HELLO, 18, "80000000"),
            "it is of the kind 'hello', and announces 2147483648 partitions",
        ),
    ],
)
def test_each_kind_of_damage_has_its_sentence(value: bytes, sentence: str) -> None:
    (beginning,) = read_values([value])[CONTROL].to_pylist()
    with pytest.raises(BadFrameError) as error:
        decode_control(beginning)
    assert str(error.value) == sentence


@given(st.binary(max_size=40))
def test_any_bytes_are_a_frame_or_a_bad_one(value: bytes) -> None:
    (beginning,) = read_values([value])[CONTROL].to_pylist()
    if beginning is None:
        assert value[:2] in {b"\x01\x00", b"\x01\x01"}
        return
    with suppress(BadFrameError):
        assert encode_control(decode_control(beginning)) == value
