"""Put entries by calls of PutRecords, one at a time for each shard, until all are confirmed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, final

from fanout.core.cancellation import TaskScope, prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.policy import Fatal, Phase, Retry
from fanout.errors import FanOutError, RemoteError, StreamStateError, WriteTimeoutError
from fanout.kinesis.aws.error_hints import code_of, explain
from fanout.kinesis.policy import THROTTLING, KinesisRemedy, judge
from fanout.kinesis.writing.shard_queues import OpenShards

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.kinesis.aws.api import KinesisWritingClient
    from fanout.kinesis.writing.entries import QueuedRecord
    from fanout.kinesis.writing.shard_queues import Put, ShardQueues
    from fanout.kinesis.writing.stream_settings import StreamSettings

# Seconds for the answer to a call. An answer takes milliseconds; a call of 10 MiB over a slow line
# takes longer.
_CALL_TIMEOUT: Final = 30.0
# How the service refuses a call for a record that its stream does not take.
_NOT_TAKEN: Final = frozenset({"ValidationException", "InvalidArgumentException"})


@final
class PutSender:
    """Put entries, and those again that were refused or not answered.

    Each shard has one call under way, so that a shard that throttles slows no other one. A final
    error ends the sending, and every waiting call raises it.
    """

    def __init__(
        self,
        client: KinesisWritingClient,
        queues: ShardQueues,
        settings: StreamSettings,
        *,
        max_bytes: int,
        delivery_timeout: float,
        jitter: FullJitter,
    ) -> None:
        self._client = client
        self._queues = queues
        self._settings = settings
        self._max_bytes = max_bytes
        self._delivery_timeout = delivery_timeout
        self._jitter = jitter
        self.records = 0  # confirmed
        self.bytes = 0  # of the confirmed records, with their partition keys
        self.calls = 0
        self.put_again = 0  # records, each time
        self.throttled = 0  # answers with an error that asks for less
        self.waiting = 0  # bytes of the records that are not confirmed
        self._sending: set[str] = set()
        self._looking = False
        self._has_put = False
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._tasks = TaskScope()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send while the block runs; entries that are not confirmed at its end are dropped."""
        async with self._tasks:
            try:
                yield
            finally:
                closed = StreamStateError(
                    "the writer is closed; use it inside its `async with` block"
                )
                self._failure = self._failure or closed
                self._progress.set()

    async def check(self, largest: int, *, keyless: bool) -> None:
        """Raise if the stream does not take such records; see `StreamSettings.refusal`."""
        self._check()
        if self._settings.suffices(largest, keyless=keyless):
            return
        await self._settings.read_now(self._jitter)
        if self._settings.automatic:
            self._queues.let_service_distribute()
        elif self._queues.automatic:
            self._look_again()
        if (refusal := self._settings.refusal(largest, keyless=keyless)) is not None:
            raise refusal

    async def put(self, entries: Iterable[QueuedRecord]) -> None:
        """Queue entries as there is room for them."""
        self._check()
        for entry in entries:
            while self.waiting and self.waiting + entry.nbytes > self._max_bytes:
                await self._wait_for_progress()
            self.waiting += entry.nbytes
            self._queues.add(entry)
        self._start()

    async def flush(self) -> None:
        """Wait until all queued entries are confirmed."""
        while self.waiting:
            await self._wait_for_progress()
        self._check()

    async def _wait_for_progress(self) -> None:
        """Wait until an entry is confirmed or fails."""
        self._check()
        self._start()
        self._progress.clear()
        await self._progress.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _start(self) -> None:
        """Send for each shard that has something to put."""
        if self._failure is not None:
            return
        for shard in self._queues.ready:
            if shard not in self._sending:
                self._sending.add(shard)
                self._run(partial(self._send, shard))

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.spawn(self._guard(work))

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Store a final error, which every waiting call raises."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the waiting calls raise it
            if self._failure is None:
                self._failure = error
        self._start()
        self._progress.set()

    async def _send(self, shard: str) -> None:
        """Put what there is for a shard; a failure slows the next call."""
        failures = 0
        try:
            while self._failure is None and (puts := self._queues.take(shard)):
                failure = await self._attempt(shard, puts)
                self._start()
                self._progress.set()
                if failure is None:
                    failures = 0
                else:
                    await asyncio.sleep(self._jitter.delay(failures))
                    failures += 1
        finally:
            self._sending.discard(shard)

    async def _attempt(self, shard: str, puts: Sequence[Put]) -> Exception | None:
        """Make one call; return why some of it is to be put again."""
        failure: Exception | None = None
        refused: Sequence[Put] = puts
        throttled = False
        self.calls += 1
        self._begin_time(puts)
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                results = await self._client.put_records([put.to_request() for put in puts])
        except Exception as error:  # noqa: BLE001 - judged
            prefer_cancellation(error)
            if code_of(error) in _NOT_TAKEN:
                await self._check_settings(puts, error)
            await self._judge(error)
            failure = error
            throttled = code_of(error) in THROTTLING
        else:
            self._has_put = True
            refused = []
            for put, result in zip(puts, results, strict=True):
                if result.error_code is not None:
                    refused.append(put)
                    failure = RemoteError(result.error_code, result.message)
                    throttled = throttled or result.error_code in THROTTLING
                    continue
                self._confirm(put)
                if result.shard_id != shard and not self._queues.automatic:
                    self._look_again()
            if self._settings.has_aged:
                self._look_again()
        self.throttled += throttled
        for put in reversed(refused):
            self._queues.settle(put, confirmed=False)
            self.put_again += len(put.entries)
        if failure is not None:
            self._check_time(refused, failure)
        return failure

    def _confirm(self, put: Put) -> None:
        self._queues.settle(put, confirmed=True)
        nbytes = sum(entry.nbytes for entry in put.entries)
        self.waiting -= nbytes
        self.bytes += nbytes
        self.records += len(put.entries)

    def _begin_time(self, puts: Sequence[Put]) -> None:
        """Begin the time of entries that are put for the first time."""
        # Before that they wait for entries that are confirmed one after the other, however slowly.
        deadline = asyncio.get_running_loop().time() + self._delivery_timeout
        for put in puts:
            first = put.entries[0]
            if first.deadline is None:
                first.deadline = deadline

    def _check_time(self, refused: Sequence[Put], failure: Exception) -> None:
        now = asyncio.get_running_loop().time()
        deadlines = [put.entries[0].deadline for put in refused]
        if any(deadline is not None and deadline <= now for deadline in deadlines):
            raise WriteTimeoutError(
                f"Kinesis did not confirm records within delivery_timeout; the error of the last "
                f"attempt: {text_of(failure)}; check that the stream has enough shards, or raise "
                f"the timeout"
            ) from failure

    async def _judge(self, error: Exception) -> None:
        """Return if another attempt may succeed; raise otherwise."""
        if isinstance(error, FanOutError):
            raise error
        match judge(error, Phase.DISCOVER, first=not self._has_put):
            case Retry():
                return
            case KinesisRemedy.REFRESH:
                try:
                    await self._client.renew_credentials()
                except Exception as failed:
                    prefer_cancellation(failed)
                    raise explain(failed, "the credentials cannot be renewed") from failed
            case Fatal() | KinesisRemedy():
                raise explain(error, "records cannot be put into the stream") from error

    async def _check_settings(self, puts: Sequence[Put], error: Exception) -> None:
        """Raise if the stream does not take one of the records any longer."""
        await self._settings.read_now(self._jitter)
        largest = max(put.nbytes for put in puts)
        keyless = any(put.key[0] is None for put in puts)
        if (refusal := self._settings.refusal(largest, keyless=keyless)) is not None:
            raise refusal from error

    def _look_again(self) -> None:
        """Ask who distributes the records, and list the shards if their keys decide."""
        # A record was put into another shard than the last listing says, or that is long ago.
        if not self._looking:
            self._looking = True
            self._run(self._reroute)

    async def _reroute(self) -> None:
        try:
            failures = 0
            while True:
                try:
                    await self._settings.read()
                    if self._settings.automatic:
                        self._queues.let_service_distribute()
                        return
                    shards = await self._client.list_shards()
                except Exception as error:  # noqa: BLE001 - judged
                    prefer_cancellation(error)
                    await self._judge(error)
                    await asyncio.sleep(self._jitter.delay(failures))
                    failures += 1
                else:
                    self._queues.reroute(OpenShards(shards))
                    return
        finally:
            self._looking = False
