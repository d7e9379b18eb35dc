from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.kafka.protocol.broker_connection import ResponseFrame, ResponseReceiver

MIB = 1 << 20


class Receiver:
    """Feed a buffered protocol as a transport does, and return its frames."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.failures: list[str] = []
        self.frames = ResponseReceiver(asyncio.Protocol(), self._take, self.failures.append)
        self.largest = 0

    def _take(self, frame: ResponseFrame) -> None:
        self.bodies.append(bytes(frame.read(1 << 30)))

    def receive(self, data: bytes, at_once: int) -> None:
        while data and not self.failures:
            buffer = self.frames.get_buffer(-1)
            self.largest = max(self.largest, len(buffer))
            piece = data[: min(len(buffer), at_once)]
            buffer[: len(piece)] = piece
            self.frames.buffer_updated(len(piece))
            data = data[len(piece) :]


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4) + body for body in bodies)


@pytest.mark.parametrize("at_once", [*range(1, 40), 1000])
def test_frames_come_whole_however_they_are_split(at_once: int) -> None:
    bodies = [b"four", b"five5", bytes(range(30))]
    receiver = Receiver()
    receiver.receive(framed(*bodies), at_once)
    assert receiver.bodies == bodies
    assert not receiver.failures


def test_short_frames_come_at_once_and_long_ones_alone() -> None:
    receiver = Receiver()
    bodies = [b"four", bytes(1000), bytes(100_000), b"next"]
    data = framed(*bodies)
    sizes = []
    while data:
        buffer = receiver.frames.get_buffer(-1)
        sizes.append(len(buffer))
        receiver.receive(data[: len(buffer)], len(buffer))
        data = data[len(buffer) :]
    assert receiver.bodies == bodies
    ahead, rest, *last = sizes
    assert ahead + rest == len(framed(*bodies[:3]))
    assert last == [ahead]


@pytest.mark.parametrize("ahead", [1, 2, 3, 4, 5])
def test_the_beginning_of_a_frame_that_is_read_ahead_is_kept(ahead: int) -> None:
    bodies = [b"four", bytes(range(256)) * 300]
    data, first = framed(*bodies), len(framed(bodies[0])) + ahead
    receiver = Receiver()
    receiver.receive(data[:first], first)
    receiver.receive(data[first:], len(data))
    assert receiver.bodies == bodies


@given(
    st.lists(st.binary(min_size=4, max_size=40_000) | st.just(bytes(70_000)), max_size=6), st.data()
)
def test_frames_come_whole_whatever_comes_at_once(bodies: list[bytes], data: st.DataObject) -> None:
    receiver = Receiver()
    whole = framed(*bodies)
    cuts = data.draw(st.sets(st.integers(1, max(len(whole) - 1, 1)), max_size=30))
    for begin, end in pairwise([0, *sorted(cuts), len(whole)]):
        receiver.receive(whole[begin:end], end - begin)
    assert receiver.bodies == bodies


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3])
def test_a_length_that_no_answer_has_is_an_error(length: int) -> None:
    receiver = Receiver()
    receiver.receive(length.to_bytes(4, signed=True) + b"more", 4)
    assert receiver.failures == [f"an answer cannot have {length} bytes"]
    assert not receiver.bodies


@pytest.mark.fault("An answer breaks off, or breaks Kafka's protocol")
def test_what_a_frame_announces_takes_no_memory_before_it_comes() -> None:
    receiver = Receiver()
    receiver.receive((2**31 - 1).to_bytes(4) + bytes(17 * MIB), MIB)
    assert receiver.largest == 16 * MIB
    assert not receiver.bodies


@pytest.mark.long
def test_a_frame_that_is_large_comes_whole() -> None:
    body = b"".join(number.to_bytes(4) for number in range(10 * MIB))
    receiver = Receiver()
    receiver.receive(framed(body, b"next"), 3 * MIB)
    assert receiver.bodies == [body, b"next"]


def test_many_bytes_of_a_frame_are_not_copied_and_cannot_be_changed() -> None:
    data = bytearray(b"name" + bytes(MIB))
    frame = ResponseFrame(data)
    assert frame.read(4) == b"name"
    batches = frame.read(MIB)
    data[4] = 1
    assert batches[0] == 1
    assert isinstance(batches, memoryview)
    assert batches.readonly
    assert frame.read(4) == b""


def test_what_a_frame_does_not_receive_is_passed_on() -> None:
    reported = []

    class Replaced(asyncio.Protocol):
        def eof_received(self) -> bool:
            reported.append("eof")
            return True

        def connection_lost(self, exc: Exception | None) -> None:
            reported.append(repr(exc))

        def pause_writing(self) -> None:
            reported.append("pause")

        def resume_writing(self) -> None:
            reported.append("resume")

    frames = ResponseReceiver(Replaced(), lambda _: None, lambda _: None)
    frames.pause_writing()
    frames.resume_writing()
    assert frames.eof_received() is True
    frames.connection_lost(OSError())
    assert reported == ["pause", "resume", "eof", "OSError()"]
