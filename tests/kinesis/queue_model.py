"""A model of a queue and of a job that stores its records, in virtual time, with faults and kills.

A job stores a batch together with what it may get again, and acknowledges it after that, as
`foreach_batch` does. It is killed now and then: from that moment on none of its calls arrives.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast

from botocore.exceptions import ClientError, EndpointConnectionError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.opening import open_stream
from fanout.errors import AcknowledgementError
from fanout.kinesis.queue.client import QueueDescription
from fanout.kinesis.queue.options import QueueOptions
from fanout.kinesis.queue.records import SCHEMA, QueueRecord
from fanout.kinesis.queue.source import QueueConnection, share_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.events import Batch
    from fanout.core.fan_out import FanOut
    from fanout.core.positions import Cursor

QUEUE = QueueDescription("work", "arn:queue/work", "ACTIVE", "arn:stream/events", 30, 50)
LOCK = 8
_STOPPED = 0.4  # how many of the lives end in order
REFUSED = ("ThrottlingException", "InternalFailureException")


@dataclass(eq=False)
class ModelRecord:
    """A record of the queue: its latest handle, and until when it is hidden."""

    id: str
    receipt: str = ""
    hidden_until: float = 0.0
    count: int = 0
    done: bool = False
    lost_locks: int = 0
    confirmed_to: object = None
    confirmed_at: float = 0.0


@dataclass(eq=False)
class ModelQueue:
    """The service; `faults` is how probable each of them is at a call."""

    random: Random
    faults: float
    records: dict[str, ModelRecord] = field(default_factory=dict)
    receipts: int = 0
    redelivered_without_reason: int = 0
    # What was delivered again so late after its acknowledgement was confirmed, or to another
    # process, that nobody can know it.
    excused: set[str] = field(default_factory=set)

    def put(self, count: int) -> None:
        for _ in range(count):
            id_ = f"r{len(self.records)}"
            self.records[id_] = ModelRecord(id_)

    @property
    def open(self) -> list[ModelRecord]:
        return [each for each in self.records.values() if not each.done]


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "model"}}, "Model")


@dataclass(eq=False)
class ModelClient:
    """The calls of one process; those of a dead one never arrive."""

    queue: ModelQueue
    alive: bool = True

    async def describe(self, _: str) -> QueueDescription:
        return QUEUE

    async def renew_credentials(self) -> None:
        pass

    async def receive(self, _: str, *, wait: int, visible_after: int) -> Sequence[QueueRecord]:
        await self._call()
        loop, random = asyncio.get_running_loop(), self.queue.random
        deadline = loop.time() + wait
        while not (visible := self._visible()) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.25)
        if not self.alive:
            raise client_error("ValidationException")  # it goes nowhere
        taken = random.sample(visible, min(len(visible), random.randint(1, 10)))
        received = []
        for record in taken:
            self.queue.redelivered_without_reason += bool(record.count) and not record.lost_locks
            record.lost_locks = 0
            late = loop.time() - record.confirmed_at > LOCK
            if record.confirmed_to is not None and (late or record.confirmed_to is not self):
                self.queue.excused.add(record.id)
            self.queue.receipts += 1
            record.receipt = f"h{self.queue.receipts}"
            record.count += 1
            record.hidden_until = loop.time() + visible_after
            received.append(
                QueueRecord(record.receipt, record.id, record.id.encode(), 1.0, record.count)
            )
        await self._answer()
        return received

    async def acknowledge(self, _: str, receipts: Sequence[str]) -> Mapping[str, Exception]:
        await self._call()
        failed: dict[str, Exception] = {}
        for receipt, record in self._by_receipt(receipts):
            if record is None:
                failed[receipt] = client_error("InvalidArgumentException")
            elif self._happens():
                failed[receipt] = client_error(self.queue.random.choice(REFUSED))
            elif self._happens():  # it is confirmed, and delivered again all the same
                record.receipt, record.hidden_until, record.lost_locks = "", 0.0, 1
                record.confirmed_to, record.confirmed_at = self, asyncio.get_running_loop().time()
            else:
                record.done, record.receipt = True, ""
        await self._answer()
        return failed

    async def set_visibility(
        self, _: str, receipts: Sequence[str], seconds: int
    ) -> Mapping[str, Exception]:
        await self._call()
        failed: dict[str, Exception] = {}
        for receipt, record in self._by_receipt(receipts):
            if record is None:
                failed[receipt] = client_error("InvalidArgumentException")
            else:
                record.hidden_until = asyncio.get_running_loop().time() + seconds
                record.lost_locks += not seconds
        await self._answer()
        return failed

    def _visible(self) -> list[ModelRecord]:
        now = asyncio.get_running_loop().time()
        for record in self.queue.open:
            if record.receipt and self._happens(0.02):
                record.hidden_until, record.lost_locks = now, 1  # the service lost the lock
        return [each for each in self.queue.open if each.hidden_until <= now]

    def _by_receipt(self, receipts: Sequence[str]) -> list[tuple[str, ModelRecord | None]]:
        found = {each.receipt: each for each in self.queue.open if each.receipt}
        return [(receipt, found.get(receipt)) for receipt in receipts]

    def _happens(self, share: float = 1.0) -> bool:
        return self.queue.random.random() < self.queue.faults * share

    async def _call(self) -> None:
        await asyncio.sleep(self.queue.random.uniform(0.001, 0.2))
        if not self.alive:
            raise client_error("ValidationException")  # it goes nowhere
        if self._happens():
            raise client_error(self.queue.random.choice(REFUSED))

    async def _answer(self) -> None:
        await asyncio.sleep(self.queue.random.uniform(0.001, 0.2))
        if not self.alive:
            raise client_error("ValidationException")  # it goes nowhere
        if self._happens():
            raise EndpointConnectionError(endpoint_url="model")


@dataclass(frozen=True)
class ModelSource:
    """The source of one process."""

    client: ModelClient
    options: QueueOptions
    schema: Any = SCHEMA
    event_time: None = None

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[QueueConnection]:
        del available_now
        jitter = FullJitter(self.options.backoff, self.client.queue.random)
        shared = share_state(self.options, QUEUE, jitter)
        try:
            yield QueueConnection(self.options, cast("Any", self.client), QUEUE, shared)
        finally:
            shared.log_limit.close()

    def cursor(self, batch: Batch, row: int) -> Cursor:
        raise NotImplementedError

    def arrival(self, *_: object) -> None:
        return None


@dataclass(eq=False)
class Store:
    """What the job has made durable."""

    records: list[str] = field(default_factory=list)
    unconfirmed: str = ""
    failed: int = 0


async def live(store: Store, client: ModelClient, random: Random, *, kill: bool) -> None:
    """Run the job until everything is stored and acknowledged, or until it is killed."""
    options = QueueOptions(
        stream="events",
        queue="work",
        receivers=random.choice((1, 3, 6)),
        visibility_timeout=LOCK,
        max_poll_records=random.choice((5, 20, 50)),
        backoff=Backoff(base=0.1, cap=1.0),
    )
    end = random.uniform(0.5, 12.0) if kill else 600.0
    try:
        async with asyncio.timeout(end):
            async with open_stream(
                cast("Any", ModelSource(client, options)), random=random
            ) as stream:
                stream.capabilities.lending.remember(store.unconfirmed)  # type: ignore[union-attr]
                try:
                    await _work(store, client, random, stream)
                finally:
                    # Otherwise it is stopped, and closes.
                    client.alive = client.alive and (not kill or random.random() < _STOPPED)
    except TimeoutError:
        assert kill, f"{len(client.queue.open)} records are not acknowledged after {end} s"
    finally:
        client.alive = False


async def _work(store: Store, client: ModelClient, random: Random, stream: FanOut) -> None:
    locks = stream.capabilities.lending
    assert locks is not None
    async with asyncio.TaskGroup() as tasks:

        async def finish() -> None:
            while client.queue.open:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
            raise _DoneError

        ending = tasks.create_task(finish())
        ending.add_done_callback(lambda _: None)
        while True:
            batch = await anext(aiter(stream))
            if not batch.num_records or not locks.keeps(batch):
                continue
            positions = {batch.split.id: batch.range.until}
            unconfirmed = locks.unconfirmed(positions)
            await asyncio.sleep(random.choice((0.0, 0.1, 1.0, 2.0 * LOCK)))
            store.records += batch.records.column("recordId").to_pylist()
            store.unconfirmed = unconfirmed
            try:
                await locks.acknowledge(positions)
            except AcknowledgementError as error:
                store.failed += len(error.records)


class _DoneError(Exception):
    """Everything is acknowledged."""


async def run_seed(seed: int) -> None:
    """Put records, kill the job some times, and compare what is stored."""
    random = Random(seed)
    faults = random.choice((0.0, 0.02, 0.1))
    queue, store = ModelQueue(random, faults), Store()
    kills = random.randint(0, 3)
    for life in range(kills + 1):
        queue.put(random.randint(1, 60))
        last = life == kills
        try:
            await live(store, ModelClient(queue), random, kill=not last)
        except* _DoneError:
            pass
        if life and random.random() < 0.5:
            await asyncio.sleep(1.5 * LOCK)
        for record in queue.open:
            record.lost_locks += 1  # by the kill
    lost = queue.records.keys() - set(store.records)
    stored = Counter(store.records)
    repeated = {id_ for id_ in stored if stored[id_] > 1} - queue.excused
    assert (lost, repeated) == (set(), set()), f"seed {seed}: lost {lost}, repeated {repeated}"
    assert not queue.open, f"seed {seed}: not acknowledged"
    if not faults:
        assert queue.redelivered_without_reason == 0, f"seed {seed}: delivered while it was held"
        assert store.failed == 0, f"seed {seed}: an acknowledgement failed"
