"""GetShardIterator and GetRecords, as the simulated service answers them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

import aiohttp

from fanout.errors import MalformedEventError, UnconfirmedEndError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.kinesis.service.event_faults import UNKNOWN_CHILD
from tests.provers.simulation.kinesis.service.pages import ShardPage, answer_of, pieces_of
from tests.provers.simulation.randomness import happens
from tests.support.kinesis.client_errors import client_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from random import Random

    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.service.service import KinesisSimService
    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("KinesisPolling", "PolledAnswer", "SimShardIterator")

_TOO_LARGE: Final = 1 << 31
# How many of the answers do not say how large they are; the reader takes 24 MiB for each.
_UNSIZED: Final = 0.1
_UNREADABLE: Final = {
    KinesisFaultKind.HALF_CLOSED,
    KinesisFaultKind.DAMAGED,
    KinesisFaultKind.OVERSIZE,
    KinesisFaultKind.GARBAGE,
}
_DAMAGES: Final = {*_UNREADABLE, KinesisFaultKind.HALF_AN_END}


@final
@dataclass(frozen=True, slots=True)
class SimShardIterator:
    """A place in a shard, as the service hands it out.

    Args:
        shard: The shard.
        cursor: The number after which to read.
        issued: When it was handed out, in virtual seconds.
    """

    shard: SourceShard
    cursor: int
    issued: float

    def encode(self) -> str:
        """Return the token that a reader sees."""
        shard = self.shard
        return f"{shard.generation}/{shard.shard_id}/{self.cursor}/{self.issued!r}"


@final
@dataclass(frozen=True, slots=True)
class PolledAnswer:
    """An answer of GetRecords on its way.

    Args:
        service: The simulated service.
        page: The content of the response.
        body: Its body.
        size: How long its headers say that the body is; None where they do not.
        fault: What happens to the body.
        ending: The error that its reader has to make of it; None for none.
    """

    service: KinesisSimService
    page: ShardPage
    body: bytes
    size: int | None
    fault: KinesisFault | None = None
    ending: type[Exception] | None = None

    def announce(self, run: ProcessRun, attempt: SubscribeAttempt) -> None:
        """Record the error that its reader has to make of it.

        Args:
            run: Its process.
            attempt: The subscribe call of the reader.
        """
        if self.ending is not None:
            run.attempts.end(attempt, (self.ending, ""), self.service.now)

    async def chunks(
        self, run: ProcessRun, attempt: SubscribeAttempt
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Args:
            run: The process that reads it.
            attempt: The subscribe call of the reader.

        Raises:
            ClientPayloadError: The connection is reset.
        """
        service, fault = self.service, self.fault
        kind = None if fault is None else fault.kind
        if kind is KinesisFaultKind.RESET:
            yield self.body[: len(self.body) // 2]
            error = aiohttp.ClientPayloadError("Response payload is not completed")
            run.attempts.end(attempt, error, service.now)
            raise error
        async for piece in self._pieces():
            yield piece
        if kind not in _UNREADABLE:
            self._received(run, attempt)

    def _received(self, run: ProcessRun, attempt: SubscribeAttempt) -> None:
        """Record that its reader has all of it."""
        if not attempt.live:
            run.attempts.answer(attempt, self.service.now)
        if self.ending is MalformedEventError:
            return  # it can be decoded, but not believed
        run.settled = True
        records, blocked = self.page.records, running_loop().blocked
        number = records[-1].sequence if records else attempt.place[1]
        if records:
            attempt.receive(number, self.service.now, blocked, records=True)
        attempt.waiting_since, attempt.blocked = self.service.now, blocked

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        kind = None if self.fault is None else self.fault.kind
        seconds = 0.0 if self.fault is None else self.fault.seconds
        half = len(self.body) // 2
        if kind is KinesisFaultKind.STALL:
            yield self.body[:half]
            await asyncio.sleep(seconds)
            yield self.body[half:]
            return
        drips = kind is KinesisFaultKind.DRIP
        for number, piece in enumerate(
            pieces_of(self.body, None if drips else self.service.random)
        ):
            if drips and number:
                await asyncio.sleep(seconds)
            yield piece


@final
class KinesisPolling:
    """Hand out shard iterators, and answer what is polled with them.

    Args:
        service: The service that they belong to.
    """

    def __init__(self, service: KinesisSimService) -> None:
        self._service = service

    def shard_id_of(self, token: str) -> str:
        """Return the shard of an iterator, also of one that has expired."""
        return token.split("/")[1]

    def decode(self, token: str) -> SimShardIterator:
        """Read an iterator.

        Raises:
            ClientError: It is not one of the service's, or of a stream or shard that is gone, or it
                has expired.
        """
        generation, _, rest = token.partition("/")
        shard_id, _, rest = rest.partition("/")
        cursor, _, issued = rest.partition("/")
        if not (generation.isdigit() and cursor.isdigit() and issued):
            self._service.state.violated(f"{token!r} is no shard iterator, and was polled with")
            raise client_error("InvalidArgumentException", "GetRecords")
        shard = self._service.existing(shard_id, "GetRecords")
        if shard.generation != int(generation):
            raise client_error("ResourceNotFoundException", "GetRecords")
        if self._service.now - float(issued) >= self._service.rules.iterator_life:
            raise client_error("ExpiredIteratorException", "GetRecords")
        return SimShardIterator(shard, int(cursor), float(issued))

    def answer(
        self,
        run: ProcessRun,
        attempt: SubscribeAttempt,
        iterator: SimShardIterator,
        limit: int | None,
        fault: KinesisFault | None,
    ) -> PolledAnswer:
        """Answer GetRecords.

        Args:
            run: The process that asks.
            attempt: What for.
            iterator: With what.
            limit: The most records; None for as many as there may be.
            fault: What happens to the answer.
        """
        service, shard = self._service, iterator.shard
        page = self._page(iterator, limit, fault)
        service.rates.returned(run, shard.shard_id, page.size)
        following = None
        if page.continuation is not None:
            following = SimShardIterator(shard, page.continuation, service.now).encode()
        body = answer_of(page, following, service.log.children(shard.shard_id))
        size = None if happens(service.random, _UNSIZED) else len(body)
        refused = service.fails_of_aggregates and service.is_broken(shard, page)
        if fault is not None and fault.kind in _DAMAGES:
            if not refused:
                return _damaged(PolledAnswer(service, page, body, size, fault))
            fault = None  # an answer that is refused as it is needs no damage
        service.sends(run, attempt, shard, page)
        return PolledAnswer(
            service, page, body, size, fault, MalformedEventError if refused else None
        )

    def _page(
        self, iterator: SimShardIterator, limit: int | None, fault: KinesisFault | None
    ) -> ShardPage:
        service, rules = self._service, self._service.rules
        if fault is not None and fault.kind is KinesisFaultKind.EMPTY_EVENTS:
            return ShardPage((), iterator.cursor, 1000)
        most = min(limit or rules.max_poll_records, rules.max_poll_records)
        return service.page(
            iterator.shard, iterator.cursor, service.now, most, rules.max_poll_bytes
        )


def _damaged(answer: PolledAnswer) -> PolledAnswer:
    """Return an answer that no reader may believe."""
    assert answer.fault is not None, "something damages it"
    body, random = answer.body, answer.service.random
    worthless = replace(answer, ending=MalformedEventError)
    match answer.fault.kind:
        case KinesisFaultKind.DAMAGED:
            return replace(worthless, body=body[:-1] + bytes([body[-1] ^ 1]), size=len(body))
        case KinesisFaultKind.OVERSIZE:
            return replace(worthless, size=_TOO_LARGE)
        case KinesisFaultKind.GARBAGE:
            return replace(worthless, body=random.randbytes(64), size=None)
        case KinesisFaultKind.HALF_CLOSED:
            return replace(worthless, body=body[: len(body) // 2], size=None)
        case _:
            halved = _half_an_end(body, random)
            return replace(answer, body=halved, size=len(halved), ending=UnconfirmedEndError)


def _half_an_end(body: bytes, random: Random) -> bytes:
    document = json.loads(body)
    if happens(random, 0.5):
        document["NextShardIterator"] = None
        document.pop("ChildShards", None)
    else:
        document["ChildShards"] = document.get("ChildShards") or [UNKNOWN_CHILD]
        document["NextShardIterator"] = document["NextShardIterator"] or "0/0/0/0"
    return json.dumps(document).encode()
