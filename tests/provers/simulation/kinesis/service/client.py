"""The calls of a stream, answered by the simulated service."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError

from fanout.kinesis.aws.api import NO_TAGS, UnreadRecords
from fanout.kinesis.aws.error_hints import code_of
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.kinesis.faults import WAITED_FOR, KinesisFaultKind, KinesisFaultSite
from tests.provers.simulation.kinesis.service.polling import KinesisPolling, SimShardIterator
from tests.provers.simulation.kinesis.service.subscription_body import SubscriptionBody
from tests.support.kinesis.client_errors import client_error, no_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from fanout.kinesis.aws.api import (
        ConsumerDescription,
        ShardDescription,
        StreamDescription,
    )
    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.service.service import KinesisSimService

__all__ = ("KinesisSimClient",)

_SUBSCRIBE: Final = "SubscribeToShard"
_ON_CALLS: Final = {
    KinesisFaultKind.CALL_REFUSED,
    KinesisFaultKind.CALL_HANGS,
    KinesisFaultKind.CALL_CUT,
}
_ON_READING: Final = {
    KinesisFaultKind.REFUSED,
    KinesisFaultKind.REFUSED_LATE,
    KinesisFaultKind.HANGS,
    KinesisFaultKind.UNREACHABLE,
}


@final
class KinesisSimClient:
    """Make the calls of one process to the simulated service.

    Args:
        service: The service.
        armed: What goes wrong.
        run: The process; once it is dead its calls get no answer.
    """

    def __init__(
        self, service: KinesisSimService, armed: ArmedFaults[KinesisFault], run: ProcessRun
    ) -> None:
        self._service = service
        self._armed = armed
        self._run = run
        self._polling = KinesisPolling(service)
        self._renewing: set[str] = set()
        self._renewed: set[str] = set()

    async def renew_credentials(self) -> None:
        """Find the newest credentials.

        Raises:
            CredentialRetrievalError: There are none.
        """
        run = self._run
        run.calling += 1
        try:
            await self._latency()
            fault = self._strike(KinesisFaultSite.RENEWAL)
            if fault is not None and fault.kind is KinesisFaultKind.RENEWAL_FAILS:
                raise CredentialRetrievalError(provider="simulated", error_msg="simulated")
            if fault is not None:
                await asyncio.sleep(fault.seconds)
            self._service.outages.give_credentials(run)
        finally:
            run.calling -= 1
            run.called_at = self._service.now

    async def describe_stream(self) -> StreamDescription:
        """Call DescribeStreamSummary."""
        async with self._call("DescribeStreamSummary"):
            return self._service.describe_stream()

    async def list_shards(self) -> list[ShardDescription]:
        """Call ListShards."""
        self._run.listed_at = running_loop().awake
        async with self._call("ListShards"):
            late = self._strike(KinesisFaultSite.CALL, kinds={KinesisFaultKind.LISTING_LATE})
            children = self._strike(KinesisFaultSite.CALL, kinds={KinesisFaultKind.CHILDREN_LATE})
            return self._service.list_shards(
                late.seconds if late else 0.0, children.seconds if children else 0.0
            )

    async def list_consumers(self, stream_arn: str) -> NoReturn:
        """Refuse: reading a stream never lists its consumers."""
        raise NotImplementedError(f"a reader never lists the consumers of {stream_arn}")

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str] = NO_TAGS
    ) -> ConsumerDescription:
        """Call RegisterStreamConsumer."""
        del stream_arn, tags
        async with self._call("RegisterStreamConsumer"):
            return self._service.consumers.register(name)

    async def describe_consumer(
        self, *, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> ConsumerDescription:
        """Call DescribeStreamConsumer."""
        del stream_arn
        async with self._call("DescribeStreamConsumer"):
            description = self._service.consumers.describe(arn, name)
            self._run.hindered |= description.status == "DELETING"
            return description

    async def deregister_consumer(self, arn: str) -> None:
        """Call DeregisterStreamConsumer."""
        async with self._call("DeregisterStreamConsumer"):
            self._service.consumers.deregister(arn)

    @asynccontextmanager
    async def subscribe(
        self, consumer_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Call SubscribeToShard."""
        service, run = self._service, self._run
        service.calls[_SUBSCRIBE] += 1
        self._armed.note(f"subscribe {shard_id} {starting_position}")
        blocked = running_loop().blocked
        attempt = run.attempts.begin(shard_id, starting_position, service.now, blocked)
        try:
            body = await self._admit(consumer_arn, shard_id, starting_position, attempt)
        except (ClientError, BotoCoreError) as error:
            run.attempts.end(attempt, error, service.now)
            raise
        try:
            await self._latency()
            run.attempts.answer(attempt, service.now)
            async with aclosing(body.chunks()) as chunks:
                yield chunks
        finally:
            service.discard(body.frames)

    async def _admit(
        self,
        consumer_arn: str,
        shard_id: str,
        starting_position: Mapping[str, Any],
        attempt: SubscribeAttempt,
    ) -> SubscriptionBody:
        """Let a subscription begin.

        Raises:
            ClientError: It is refused.
            BotoCoreError: There is no answer.
        """
        service, run = self._service, self._run
        await self._latency()
        service.outages.check(run, _SUBSCRIBE)
        service.consumers.call(run, consumer_arn, shard_id)
        await self._meet(_SUBSCRIBE, shard_id)
        service.consumers.admit(run, consumer_arn, shard_id)
        shard, cursor = service.shard_at(run, shard_id, starting_position, _SUBSCRIBE)
        inside = starting_position["Type"] == "AT_SEQUENCE_NUMBER"
        run.held.resume(shard_id, cursor, inside=inside)
        body = SubscriptionBody(
            service, self._armed, run, attempt=attempt, shard=shard, cursor=cursor
        )
        service.consumers.begin(consumer_arn, body.frames)
        return body

    async def get_shard_iterator(
        self, stream_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> str:
        """Call GetShardIterator."""
        del stream_arn
        service, run, action = self._service, self._run, "GetShardIterator"
        service.calls[action] += 1
        self._armed.note(f"iterate {shard_id} {starting_position}")
        if shard_id in self._renewing:
            self._renewing.discard(shard_id)
            self._renewed.add(shard_id)
        else:
            run.attempts.begin(shard_id, starting_position, service.now, running_loop().blocked)
        with self._ending(shard_id):
            await self._latency()
            service.outages.check(run, action)
            service.rates.poll(run, action, shard_id)
            await self._meet(action, shard_id)
            shard, cursor = service.shard_at(run, shard_id, starting_position, action)
            await self._latency()
        return SimShardIterator(shard, cursor, service.now).encode()

    @asynccontextmanager
    async def get_records(
        self, stream_arn: str, shard_iterator: str, *, limit: int | None = None
    ) -> AsyncIterator[UnreadRecords]:
        """Call GetRecords."""
        del stream_arn
        service, run, action = self._service, self._run, "GetRecords"
        service.calls[action] += 1
        shard_id = self._polling.shard_id_of(shard_iterator)
        attempt = run.attempts.last(shard_id)
        assert attempt is not None, "an iterator was asked for"
        with self._ending(shard_id):
            await self._latency()
            service.outages.check(run, action)
            iterator = self._polling.decode(shard_iterator)
            service.rates.poll(run, action, shard_id)
            await self._meet(action, shard_id)
            fault = self._strike(KinesisFaultSite.EVENT, shard=shard_id)
            answer = self._polling.answer(run, attempt, iterator, limit, fault)
            await self._latency()
            answer.announce(run, attempt)
            self._renewed.discard(shard_id)
            async with aclosing(answer.chunks(run, attempt)) as chunks:
                yield UnreadRecords(answer.size, chunks)

    @contextmanager
    def _ending(self, shard_id: str) -> Iterator[None]:
        """Record an error that ends the reading of a shard by polls."""
        attempt = self._run.attempts.last(shard_id)
        assert attempt is not None, "an iterator was asked for"
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            expired = attempt.live and code_of(error) == "ExpiredIteratorException"
            if expired and shard_id not in self._renewed:
                self._renewing.add(shard_id)  # that its reader asks for another one is no news
            else:
                self._run.attempts.end(attempt, error, self._service.now)
            raise

    @asynccontextmanager
    async def _call(self, action: str) -> AsyncIterator[None]:
        """Make a call that the block answers, or that is not answered.

        Raises:
            ClientError: It is refused.
            BotoCoreError: There is no answer.
        """
        run = self._run
        self._service.calls[action] += 1
        run.calling += 1
        try:
            await self._latency()
            self._service.outages.check(run, action)
            self._service.rates.call(run, action)
            await self._go_wrong(action)
            yield
        except (ClientError, BotoCoreError) as error:
            run.refusals.append(error)
            raise
        finally:
            run.calling -= 1
            run.called_at = self._service.now

    async def _go_wrong(self, action: str) -> None:
        fault = self._strike(KinesisFaultSite.CALL, kinds=_ON_CALLS)
        if fault is None:
            return
        if fault.kind is KinesisFaultKind.CALL_CUT:
            raise no_answer(self._service.random)
        if fault.kind is KinesisFaultKind.CALL_REFUSED:
            raise client_error(fault.code, action)
        self._run.hung += 1
        await asyncio.sleep(fault.seconds)

    async def _meet(self, action: str, shard_id: str) -> None:
        """Let a call about a shard meet what goes wrong with it.

        Raises:
            ClientError: It is refused.
            BotoCoreError: There is no answer.
        """
        kinds = _ON_READING | (
            {KinesisFaultKind.ITERATOR_EXPIRED} if action == "GetRecords" else set()
        )
        fault = self._strike(KinesisFaultSite.SUBSCRIBE, shard=shard_id, kinds=kinds)
        if fault is None:
            return
        if fault.kind is KinesisFaultKind.UNREACHABLE:
            raise no_answer(self._service.random)
        if fault.kind is KinesisFaultKind.HANGS:
            await asyncio.get_running_loop().create_future()
        if fault.kind is KinesisFaultKind.ITERATOR_EXPIRED:
            raise client_error("ExpiredIteratorException", action)
        await asyncio.sleep(fault.seconds)
        raise client_error(fault.code, action)

    async def _latency(self) -> None:
        """Let an answer take its time; to a process that is dead it never comes."""
        if self._run.dead:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self._service.random.choice((0.001, 0.01, 0.05, 0.5)))

    def _strike(
        self,
        site: KinesisFaultSite,
        *,
        shard: str | None = None,
        kinds: set[KinesisFaultKind] | None = None,
    ) -> KinesisFault | None:
        but = () if self._run.settled else WAITED_FOR
        return self._armed.strike(site, self._service.now, shard=shard, kinds=kinds, but=but)
