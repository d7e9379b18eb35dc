from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import time
import weakref
from typing import TYPE_CHECKING

import pytest
from aiokafka.errors import (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaProtocolError,
)

from fanout.kafka.protocol.broker_connection import BrokerConnection, ResponseReceiver
from fanout.kafka.protocol.messages.fetch import CheckedFetchRequest
from tests.kafka.certificates import make_certificates
from tests.kafka.protocol.peer import (
    RECORDS,
    REQUEST,
    appended,
    ask,
    batches_of,
    connected,
    fetched,
    frame,
)

if TYPE_CHECKING:
    from asyncio import StreamWriter
    from pathlib import Path

SOON = 10.0
MIB = 1 << 20
LARGE = [bytes([number]) * 3 * MIB for number in range(3)]
CANARY = b"canary" * 20_000


async def large(writer: StreamWriter, number: int) -> None:
    writer.write(frame(number, fetched(*LARGE)))


async def hang(writer: StreamWriter, number: int) -> None:
    pass


async def test_an_answer_is_read_and_its_batches_are_views_of_one_memory() -> None:
    async with connected(large) as connection:
        for _ in range(3):
            batches = batches_of(await connection.send(REQUEST))
            assert batches == LARGE
            assert all(isinstance(data, memoryview) for data in batches)
            memories = {id(data.obj) for data in batches if isinstance(data, memoryview)}
            assert len(memories) == 1


async def test_an_answer_stays_as_it_is_while_others_come() -> None:
    async def count(writer: StreamWriter, number: int) -> None:
        writer.write(frame(number, fetched(bytes([number]) * MIB)))

    async with connected(count) as connection:
        answers = [await connection.send(REQUEST) for _ in range(5)]
        for number, answer in enumerate(answers, start=2):
            assert batches_of(answer) == [bytes([number]) * MIB]


async def test_little_and_nothing_are_read() -> None:
    async def little(writer: StreamWriter, number: int) -> None:
        writer.write(frame(number, fetched(b"x", b"", None)))

    async with connected(little) as connection:
        assert batches_of(await connection.send(REQUEST)) == [b"x", b"", None]


async def test_answers_that_come_at_once_go_to_their_requests() -> None:
    waiting: list[bytes] = []

    async def together(writer: StreamWriter, number: int) -> None:
        waiting.append(frame(number, fetched(b"%d" % number)))
        if len(waiting) == 3:
            writer.write(b"".join(waiting))

    async with connected(together) as connection:
        sent = [connection.send(REQUEST) for _ in range(3)]
        answers = await asyncio.gather(*sent)
    assert [batches_of(answer) for answer in answers] == [[b"2"], [b"3"], [b"4"]]


async def test_an_answer_that_comes_in_pieces_is_read() -> None:
    async def pieces(writer: StreamWriter, number: int) -> None:
        whole = frame(number, fetched(b"batches"))
        for at in range(len(whole)):
            writer.write(whole[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async with connected(pieces) as connection:
        for _ in range(2):
            assert batches_of(await connection.send(REQUEST)) == [b"batches"]


async def test_answers_come_over_tls(tmp_path: Path) -> None:
    files = await asyncio.to_thread(make_certificates, tmp_path)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(files.broker)
    ours = ssl.create_default_context(cafile=str(files.ca))

    async def then_hang_up(writer: StreamWriter, number: int) -> None:
        whole = frame(number, fetched(*LARGE, b"little"))
        match number:
            case 2:
                writer.write(whole + frame(3, fetched(b"next")))
            case 4:
                writer.write(whole)
            case 5:
                writer.write(whole[:MIB])
                writer.close()
            case _:
                pass

    async with connected(then_hang_up, tls=(theirs, ours)) as connection:
        first, second = connection.send(REQUEST), connection.send(REQUEST)
        assert batches_of(await first) == [*LARGE, b"little"]
        assert batches_of(await second) == [b"next"]
        assert batches_of(await connection.send(REQUEST)) == [*LARGE, b"little"]
        with pytest.raises(KafkaConnectionError):
            await connection.send(REQUEST)
        assert not connection.connected()


@pytest.mark.fault("An answer breaks off, or breaks Kafka's protocol")
@pytest.mark.parametrize("sent", [2, 4, 6, 100, MIB])
async def test_a_connection_that_breaks_within_an_answer_fails_all_that_wait(sent: int) -> None:
    async def cut(writer: StreamWriter, number: int) -> None:
        if number == 3:
            writer.write(frame(2, fetched(*LARGE))[:sent])
            writer.close()

    async with connected(cut) as connection:
        waiting = [ask(connection) for _ in range(2)]
        for answer in waiting:
            async with asyncio.timeout(SOON):
                with pytest.raises(KafkaConnectionError):
                    await answer
        assert not connection.connected()


@pytest.mark.fault("An answer breaks off, or breaks Kafka's protocol")
@pytest.mark.parametrize(
    ("sent", "error", "message"),
    [
        (frame(7, fetched(b"x")), CorrelationIdError, "request 2 has answer 7"),
        ((-5).to_bytes(4, signed=True), KafkaProtocolError, "cannot have -5 bytes"),
        (b"\0\0\0\0", KafkaProtocolError, "cannot have 0 bytes"),
        (frame(2, fetched(CANARY)[:-1]), KafkaProtocolError, "FetchRequest_v11 cannot be read"),
        (frame(2, b""), KafkaProtocolError, "cannot be read"),
        (
            frame(2, fetched(b"", topic="canary").replace(b"canary", b"canar\xff")),
            KafkaProtocolError,
            "cannot be read",
        ),
    ],
)
async def test_what_breaks_the_protocol_is_an_error_that_says_so_and_closes(
    sent: bytes,
    error: type[Exception],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def respond(writer: StreamWriter, number: int) -> None:
        if number == 3:
            writer.write(sent)

    caplog.set_level(logging.DEBUG)
    async with connected(respond) as connection:
        first, second = (ask(connection) for _ in range(2))
        with pytest.raises(error, match=rf"127\.0\.0\.1:\d+ breaks Kafka's.*{message}") as caught:
            await first
        assert type(caught.value) is error
        with pytest.raises(KafkaConnectionError) as closed:
            await second
        assert closed.value.__cause__ is caught.value
        assert caught.value.retriable
        assert not connection.connected()
    assert "canar" not in repr((caught.value, caught.value.__cause__, caught.value.__context__))
    assert "canar" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_answer_that_nobody_asked_for_closes(caplog: pytest.LogCaptureFixture) -> None:
    async def twice(writer: StreamWriter, number: int) -> None:
        writer.write(2 * frame(number, fetched(b"x")))

    async with connected(twice) as connection:
        assert batches_of(await connection.send(REQUEST)) == [b"x"]
        closed = connection._closed_fut
        async with asyncio.timeout(SOON):
            await closed
        with pytest.raises(KafkaConnectionError):
            await connection.send(REQUEST)
    assert not caplog.records


async def test_an_answer_that_is_not_waited_for_is_skipped() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(writer: StreamWriter, number: int) -> None:
        whole = frame(number, fetched(b"%d" % number, CANARY))
        writer.write(whole[:9])
        begun.set()
        await go_on.wait()
        writer.write(whole[9:])

    async with connected(slow) as connection:
        first = ask(connection)
        second = ask(connection)
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go_on.set()
        assert batches_of(await second) == [b"3", CANARY]
        assert batches_of(await connection.send(REQUEST)) == [b"4", CANARY]


async def test_an_answer_that_does_not_come_in_time_is_a_timeout() -> None:
    async with connected(hang) as connection:
        connection._request_timeout = 0.05
        with pytest.raises(TimeoutError):
            await connection.send(REQUEST)


async def append(writer: StreamWriter, number: int) -> None:
    writer.write(frame(number, appended(number)))


async def test_records_are_answered_in_their_order_and_one_may_be_cancelled() -> None:
    async with connected(append) as connection:
        sent = [ask(connection, RECORDS) for _ in range(3)]
        sent[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await sent[1]
        offsets = [(await sent[each]).topics[0][1][0][2] for each in (0, 2)]
        assert offsets == [2, 4]
        assert not connection._requests


async def test_records_that_nobody_confirms_are_sent_and_no_answer_is_awaited() -> None:
    numbers: list[int] = []

    async def note(writer: StreamWriter, number: int) -> None:
        numbers.append(number)
        if number == 3:
            writer.write(frame(number, fetched(b"x")))

    async with connected(note) as connection:
        await connection.send(RECORDS, expect_response=False)
        assert batches_of(await connection.send(REQUEST)) == [b"x"]
    assert numbers == [2, 3]


async def test_records_are_not_sent_over_a_closed_connection() -> None:
    async with connected(append) as connection:
        await connection.close()
        with pytest.raises(KafkaConnectionError, match="there is no connection to 127"):
            await connection.send(RECORDS)


async def test_records_that_are_not_confirmed_in_time_are_a_timeout() -> None:
    async with connected(hang) as connection:
        connection._request_timeout = 0.05
        with pytest.raises(TimeoutError):
            await connection.send(RECORDS)


async def test_a_connection_that_is_idle_closes_and_one_that_waits_does_not() -> None:
    async def late(writer: StreamWriter, number: int) -> None:
        await asyncio.sleep(0.2)  # longer than the connection may be idle
        writer.write(frame(number, fetched(b"late")))

    async with connected(late, max_idle_ms=100) as connection:
        asked_at = time.monotonic()
        assert batches_of(await connection.send(REQUEST)) == [b"late"]
        assert connection._last_action >= asked_at
        async with asyncio.timeout(SOON):
            await connection._closed_fut
        assert not connection.connected()


async def test_closing_within_an_answer_is_at_once_and_keeps_none_of_it() -> None:
    begun = asyncio.Event()

    async def endless(writer: StreamWriter, _: int) -> None:
        writer.write((2**31 - 1).to_bytes(4) + bytes(2 * MIB))
        begun.set()

    async with connected(endless) as connection:
        waiting = ask(connection)
        await begun.wait()
        frames = connection._writer.transport.get_protocol()
        assert isinstance(frames, ResponseReceiver)
        gone = weakref.ref(frames)
        del frames
        async with asyncio.timeout(SOON):
            await connection.close()
        with pytest.raises(KafkaConnectionError):
            await waiting
        gc.collect()
        assert gone() is None


async def test_a_connection_that_is_gone_when_it_is_made_is_an_error_of_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up = BrokerConnection._do_version_lookup

    async def then_break(connection: BrokerConnection) -> None:
        await look_up(connection)
        connection.close()

    monkeypatch.setattr(BrokerConnection, "_do_version_lookup", then_break)
    async with connected(hang) as connection:
        assert not connection.connected()
        with pytest.raises(KafkaConnectionError):
            await connection.send(REQUEST)


async def test_a_flexible_answer_that_ends_too_early_breaks_the_protocol() -> None:
    async def respond(writer: StreamWriter, number: int) -> None:
        if number == 3:
            # The header has no tagged fields, and neither an error nor topics follow.
            writer.write(frame(2, b"\0" + bytes(10)))

    async with connected(respond) as connection:
        request = CheckedFetchRequest((10, 1, 1000, 1), [("orders", [(0, 0, 1000, 3)])], "")
        connection._versions[1] = (4, 12)
        waiting = [connection.send(request) for _ in range(2)]
        async with asyncio.timeout(SOON):
            with pytest.raises(KafkaProtocolError, match="FetchRequest_v12 cannot be read"):
                await waiting[0]
            with pytest.raises(KafkaConnectionError):
                await waiting[1]
