from __future__ import annotations

import importlib.util
import struct
import sys
import tracemalloc
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import DamagedFrameError, MalformedEventError, StreamStateError
from fanout.kinesis.reading.event_stream import MAX_FRAME_BYTES, EventStreamFrame, FrameDecoder
from fanout.testing.kinesis.frames import encode_event, encode_exception, encode_frame
from tests.kinesis.framing import header, sealed

if TYPE_CHECKING:
    from collections.abc import Iterable


def decode(chunks: Iterable[bytes], decoder: FrameDecoder | None = None) -> list[EventStreamFrame]:
    decoder = decoder or FrameDecoder()
    frames = []
    for chunk in chunks:
        decoder.feed(chunk)
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    decoder.close()
    return frames


def test_an_event_comes_with_its_headers_and_payload() -> None:
    (frame,) = decode([encode_event("SubscribeToShardEvent", b'{"a":1}')])
    assert (frame.message_type, frame.event_type) == ("event", "SubscribeToShardEvent")
    assert bytes(frame.payload) == b'{"a":1}'


def test_frames_are_checked_on_machines_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.delitem(sys.modules, "isal.isal_zlib", raising=False)
    spec = importlib.util.find_spec("fanout.kinesis.reading.event_stream")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, plain)
    spec.loader.exec_module(plain)
    assert plain.crc32 is zlib.crc32
    frame = bytearray(encode_event("SubscribeToShardEvent", b'{"a":1}'))
    assert decode([bytes(frame)], plain.FrameDecoder())[0].event_type == "SubscribeToShardEvent"
    frame[-6] ^= 1
    with pytest.raises(DamagedFrameError):
        decode([bytes(frame)], plain.FrameDecoder())


def test_an_exception_comes_with_its_type() -> None:
    (frame,) = decode([encode_exception("InternalFailureException", "sorry")])
    assert (frame.message_type, frame.exception_type) == ("exception", "InternalFailureException")


def test_an_error_comes_with_its_code_and_message() -> None:
    sent = {":message-type": "error", ":error-code": "Oops", ":error-message": "sorry"}
    (frame,) = decode([encode_frame(sent, b"")])
    assert (frame.error_code, frame.error_message) == ("Oops", "sorry")


def test_a_missing_header_is_none() -> None:
    (frame,) = decode([encode_frame({}, b"")])
    assert frame.message_type is None


def test_a_header_of_another_type_than_text_is_malformed() -> None:
    (frame,) = decode([sealed(header(b":message-type", 0, b""))])
    with pytest.raises(MalformedEventError, match=":message-type holds bool"):
        _ = frame.message_type


@pytest.mark.fault("The network cuts frames at any byte")
def test_frames_may_be_cut_at_any_byte() -> None:
    sent = encode_event("initial-response", b"{}") + encode_event("SubscribeToShardEvent", b"data")
    for cut in range(len(sent) + 1):
        frames = decode([sent[:cut], sent[cut:]])
        assert [bytes(frame.payload) for frame in frames] == [b"{}", b"data"]


@pytest.mark.fault("The network cuts frames at any byte")
def test_frames_may_come_byte_by_byte() -> None:
    sent = encode_event("first", b"1") + encode_event("second", b"2")
    frames = decode(sent[at : at + 1] for at in range(len(sent)))
    assert [frame.event_type for frame in frames] == ["first", "second"]


@given(
    frames=st.lists(
        st.tuples(
            st.dictionaries(st.text(min_size=1, max_size=60), st.text(max_size=60), max_size=5),
            st.binary(max_size=300),
        ),
        max_size=5,
    ),
    chunk_size=st.integers(1, 400),
)
def test_frames_are_those_that_botocore_decodes(
    frames: list[tuple[dict[str, str], bytes]], chunk_size: int
) -> None:
    sent = b"".join(encode_frame(headers, payload) for headers, payload in frames)
    buffer = EventStreamBuffer()
    buffer.add_data(sent)
    theirs = [(message.headers, message.payload) for message in buffer]
    ours = decode(sent[at : at + chunk_size] for at in range(0, len(sent), chunk_size))
    assert [(frame.headers, bytes(frame.payload)) for frame in ours] == theirs == frames


@pytest.mark.parametrize(
    ("kind", "sent", "value"),
    [
        (0, b"", True),
        (1, b"", False),
        (2, b"\xff", -1),
        (3, b"\x80\x00", -(2**15)),
        (4, b"\x7f\xff\xff\xff", 2**31 - 1),
        (5, b"\x80" + bytes(7), -(2**63)),
        (6, b"\x00\x03\x00\xff\x01", b"\x00\xff\x01"),
        (7, b"\x00\x03\xe2\x82\xac", "€"),
        (8, struct.pack(">q", 1_795_218_308_174), datetime(2026, 11, 20, 23, 45, 8, 174000, UTC)),
        (9, bytes(range(16)), UUID(bytes=bytes(range(16)))),
    ],
)
def test_every_header_type_is_decoded(kind: int, sent: bytes, value: object) -> None:
    (frame,) = decode([sealed(header(b"name", kind, sent) + header(b"next", 0, b""))])
    assert frame.headers == {"name": value, "next": True}


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(header(b"n", 10, b""), id="unknown type"),
        pytest.param(header(b"n", 5, bytes(7)), id="short long"),
        pytest.param(header(b"n", 6, b"\x00\x05abcd"), id="bytes past the end"),
        pytest.param(header(b"n", 7, b"\x00"), id="half a length"),
        pytest.param(header(b"n", 7, b"\x00\x01\xff"), id="not UTF-8"),
        pytest.param(header(b"n", 8, b"\x7f" + bytes(7)), id="a timestamp beyond all years"),
        pytest.param(header(b"n", 9, bytes(15)), id="short uuid"),
        pytest.param(header(b"\xff", 0, b""), id="name not UTF-8"),
        pytest.param(b"\x05nam", id="name past the end"),
        pytest.param(b"\x01n", id="no type"),
        pytest.param(header(b"", 0, b""), id="empty name"),
        pytest.param(header(b"n", 0, b"") * 2, id="name twice"),
    ],
)
def test_an_inconsistent_header_is_malformed(headers: bytes) -> None:
    with pytest.raises(MalformedEventError, match=r"^header [12] of an event stream frame"):
        decode([sealed(headers)])


def test_sixty_four_headers_are_the_most() -> None:
    headers = {str(number): "" for number in range(65)}
    with pytest.raises(MalformedEventError, match="more than the 64 headers"):
        decode([encode_frame(headers, b"")])
    del headers["64"]
    assert len(decode([encode_frame(headers, b"")])) == 1


def test_a_malformed_header_is_not_quoted() -> None:
    secret = b"canary-\xff"
    with pytest.raises(MalformedEventError) as caught:
        decode([sealed(header(b"n", 7, struct.pack(">H", len(secret)) + secret))])
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "canary" not in str(caught.value)


@pytest.mark.fault("A checksum is wrong")
@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_flipped_bit_in_the_prelude_is_found(at: int) -> None:
    sent = bytearray(encode_event("SubscribeToShardEvent", b"data"))
    sent[at + 3] ^= 1
    with pytest.raises(MalformedEventError, match="checksum of an event stream frame's prelude"):
        decode([bytes(sent)])


@pytest.mark.fault("A checksum is wrong")
@pytest.mark.parametrize("at", [12, 40, -5, -1])
def test_a_flipped_bit_after_the_prelude_is_found(at: int) -> None:
    sent = bytearray(encode_event("SubscribeToShardEvent", b"data"))
    sent[at] ^= 1
    with pytest.raises(MalformedEventError, match="checksum of an event stream frame does not"):
        decode([bytes(sent)])


def test_an_oversized_frame_is_refused_by_its_prelude_alone() -> None:
    decoder = FrameDecoder(max_frame_bytes=1000)
    decoder.feed(sealed(b"", total=1001)[:12])
    with pytest.raises(MalformedEventError, match="announces 1001 bytes, more than the 1000"):
        decoder.next_frame()


def test_a_frame_of_the_allowed_size_is_taken() -> None:
    assert len(decode([sealed(b"", bytes(84))], FrameDecoder(max_frame_bytes=100))) == 1


def test_too_many_header_bytes_are_refused_by_the_prelude_alone() -> None:
    decoder = FrameDecoder()
    decoder.feed(sealed(bytes(128 * 1024 + 1))[:12])
    with pytest.raises(MalformedEventError, match="131073 bytes of headers"):
        decoder.next_frame()


@pytest.mark.parametrize("total", [0, 15, 17])
def test_a_frame_shorter_than_its_headers_is_malformed(total: int) -> None:
    with pytest.raises(MalformedEventError, match=f"frame of {total} bytes cannot hold"):
        decode([sealed(b"\x01n\x00", total=total)])


def test_announced_is_zero_until_the_prelude_is_there_and_after_the_frame() -> None:
    sent = encode_event("SubscribeToShardEvent", b"data")
    decoder = FrameDecoder()
    announced = [decoder.announced]
    for at in range(len(sent)):
        decoder.feed(sent[at : at + 1])
        decoder.next_frame()
        announced.append(decoder.announced)
    assert announced == [0] * 12 + [len(sent)] * (len(sent) - 12) + [0]


def test_an_announced_body_takes_no_memory_before_it_comes() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        decoder.feed(sealed(b"", total=MAX_FRAME_BYTES)[:12])
        decoder.next_frame()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.announced == MAX_FRAME_BYTES
    assert peak < 64 * 1024


def test_an_announced_body_takes_the_memory_of_its_first_chunk_until_it_is_reserved() -> None:
    decoder = FrameDecoder()
    first = sealed(b"", total=MAX_FRAME_BYTES)[:12] + bytes(1000)
    tracemalloc.start()
    try:
        decoder.feed(first)
        assert decoder.next_frame() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.announced == MAX_FRAME_BYTES
    assert peak < 64 * 1024


def test_a_frame_takes_little_more_memory_than_its_bytes() -> None:
    size = 8 * 1024 * 1024
    sent = memoryview(sealed(b"", bytes(size)))
    tracemalloc.start()
    try:
        frames = decode(sent[at : at + 65536] for at in range(0, len(sent), 65536))  # type: ignore[misc]  # a view saves the test's own copies
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(frames[0].payload) == size
    assert peak < 1.2 * size


def test_a_frame_outlives_the_frames_that_follow() -> None:
    frames = decode([b"".join(encode_event("e", bytes([n]) * 100) for n in range(50))])
    assert [bytes(frame.payload) for frame in frames] == [bytes([n]) * 100 for n in range(50)]


def test_a_payload_cannot_be_written_to() -> None:
    (frame,) = decode([encode_event("e", b"data")])
    assert frame.payload.readonly


def test_feeding_before_all_frames_are_taken_is_a_state_error() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_event("e", b""))
    with pytest.raises(StreamStateError, match="next_frame"):
        decoder.feed(b"more")


def test_a_stream_that_ends_between_frames_is_whole() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_event("e", b""))
    decoder.next_frame()
    decoder.close()


@pytest.mark.fault("A body ends inside a frame, although its transfer was whole")
@pytest.mark.parametrize(("cut", "expected"), [(5, "5 of at least 16"), (30, "30 of 111")])
def test_a_stream_that_ends_inside_a_frame_is_malformed(cut: int, expected: str) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_event("SubscribeToShardEvent", b"data")[:cut])
    decoder.next_frame()
    with pytest.raises(MalformedEventError, match=f"{expected} bytes arrived"):
        decoder.close()


def test_an_error_of_a_length_repeats_itself() -> None:
    frame = bytearray(encode_event("e", b""))
    frame[0] ^= 1
    decoder = FrameDecoder()
    decoder.feed(bytes(frame))
    for _ in range(2):
        with pytest.raises(MalformedEventError, match="it is unknown where the next frame begins"):
            decoder.next_frame()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "bad", [encode_event("e", b"")[:-1] + b"?", sealed(header(b"", 0, b""))], ids=["sum", "header"]
)
def test_behind_a_damaged_frame_the_next_one_is_taken(bad: bytes, size: int) -> None:
    body = bad + encode_event("e", b"data")
    decoder = FrameDecoder()
    damaged, frames = 0, []
    for start in range(0, len(body), size):
        decoder.feed(body[start : start + size])
        while True:
            try:
                frame = decoder.next_frame()
            except DamagedFrameError:
                damaged += 1
                continue
            if frame is None:
                break
            frames.append(bytes(frame.payload))
    decoder.close()
    assert (damaged, frames) == (1, [b"data"])


@pytest.mark.fault("What comes is no frame or no event at all")
@pytest.mark.long
@given(st.lists(st.binary(max_size=64)))
def test_any_bytes_are_frames_or_malformed(chunks: list[bytes]) -> None:
    with suppress(MalformedEventError):
        decode(chunks)


@given(headers=st.binary(max_size=80), payload=st.binary(max_size=20))
def test_any_headers_are_decoded_or_malformed(headers: bytes, payload: bytes) -> None:
    try:
        (frame,) = decode([sealed(headers, payload)])
    except MalformedEventError:
        return
    assert frame.payload == payload
