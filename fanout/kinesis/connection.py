"""Connect one running stream to Kinesis, by enhanced fan-out or by polling."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

from fanout.core.policy import Fatal, Phase, Retry
from fanout.core.source import Capabilities, Terms
from fanout.core.statistics import Origin
from fanout.core.subscription import Tap
from fanout.kinesis.aws.credentials import CredentialRefresh
from fanout.kinesis.aws.error_hints import TAKEN_OVER, hint_of, name_of
from fanout.kinesis.closed_shards import ClosedShards, MeasuredEvents
from fanout.kinesis.policy import KinesisRemedy, judge
from fanout.kinesis.reading.deaggregation import Deaggregator
from fanout.kinesis.reading.polling import Poller
from fanout.kinesis.reading.recovery import Recovery
from fanout.kinesis.reading.subscription import DamagedFrames, EnhancedFanOut
from fanout.kinesis.shards import ShardCatalog
from fanout.kinesis.starting_position import describe_position, resolve_start
from fanout.kinesis.stream_positions import adopt_alone, identity
from fanout.kinesis.takeovers import Takeovers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.aws.api import KinesisClient, ShardDescription, StreamDescription
    from fanout.kinesis.options import KinesisOptions
    from fanout.kinesis.registration import ConsumerRegistration


@final
class KinesisConnection:
    """Read one stream: list its shards, subscribe to them, and judge errors.

    Without a registration the shards are polled.
    """

    def __init__(
        self,
        options: KinesisOptions,
        client: KinesisClient,
        stream: StreamDescription,
        registration: ConsumerRegistration | None,
    ) -> None:
        consumer = None if registration is None else registration.name
        self.identity = identity(stream)
        self.capabilities = Capabilities(
            terms=Terms("shard", describe_position, name_of),
            origin=Origin("aws_kinesis", stream.name, consumer),
            decode=options.decoder,
            adopt=self._adopt,
        )
        self.pacing: Pacing = options.pacing
        self._options = options
        self._client = client
        self._stream = stream
        self._worked: set[Phase] = set()
        self._credential_refresh = CredentialRefresh(client.renew_credentials)
        self._catalog = ShardCatalog(client)
        self._closed_shards = ClosedShards(self._catalog, stream.name)
        self._recovery = Recovery(
            client,
            stream.name,
            self._catalog,
            registration,
            on_data_loss=options.on_data_loss,
        )
        self._damaged_frames = DamagedFrames(options.on_bad_frame)
        self._deaggregator = Deaggregator(options.on_bad_aggregate, automatic=stream.automatic)
        self._takeovers = Takeovers(stream.name, consumer or "")
        self._discovers = False
        self._listing = asyncio.Lock()
        self._reader: EnhancedFanOut | Poller
        if registration is None:
            self._reader = Poller(
                client,
                stream,
                max_event_bytes=options.max_event_bytes,
                deaggregator=self._deaggregator,
            )
        else:
            self._reader = EnhancedFanOut(
                client,
                stream,
                registration,
                damaged_frames=self._damaged_frames,
                max_event_bytes=options.max_event_bytes,
                deaggregator=self._deaggregator,
            )

    @property
    def stream(self) -> StreamDescription:
        """The stream, as the service described it when the connection was opened."""
        return self._stream

    @property
    def shards(self) -> Mapping[str, ShardDescription]:
        """The last description of each shard that was listed."""
        return self._catalog.known

    async def splits(self) -> Sequence[Split]:
        """List the shards within the retention period, with their parents."""
        self._discovers = True
        return await self._list()

    async def _list(self) -> Sequence[Split]:
        self._credential_refresh.calling(None)
        splits = await self._catalog.refresh()
        self._credential_refresh.allowed(None)
        self._worked.add(Phase.DISCOVER)
        for shard in self._catalog.listed.values():
            self._deaggregator.set_hash_range(shard.shard_id, shard.hash_range)
        self._closed_shards.check()
        return splits

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the start into a position for each shard.

        Latest becomes the service's own time, so that neither a skewed clock of this machine nor a
        failed first subscription skips a record. The service sends it in whole seconds, so records
        of up to one second before may come as well. Closed shards begin there too: they end at
        once, and their children begin at that time instead of at their horizon.
        """
        return resolve_start(self._options.start, splits, self._stream.server_time)

    async def _adopt(self, checkpoint: Checkpoint, splits: Sequence[Split]) -> Checkpoint | None:
        """Continue stored positions, unless another stream was created by the name since."""
        del splits
        return adopt_alone(checkpoint, self._stream)

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Open one subscription to a shard: for up to five minutes, or in polling until it ends.

        A lander's connection is not asked to list the shards. It lists them here before a child of
        a reshard that it does not know: the hash keys say which sub-records are the child's own.
        """
        if split.parents and not self._discovers:
            async with self._listing:
                if not self._deaggregator.has_hash_range(split.id):
                    await self._list()
        self._credential_refresh.calling(split.id)
        wait = self._closed_shards.wait(split)
        async with self._reader.open(split, position, wait.excluding(reserve)) as events:
            self._worked.add(Phase.SUBSCRIBE)
            yield Tap(MeasuredEvents(events, wait), self._observe)

    def _observe(self, event: Batch | End) -> None:
        self._worked.add(Phase.STREAM)
        self._credential_refresh.allowed(event.split.id)
        self._recovery.check_after_loss(event)
        self._closed_shards.observe(event)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Judge an error by the table in `fanout.kinesis.policy`; in a listing there is no split.

        If the table's answer is a remedy, it is tried first: new credentials, or calls that find
        out whether the stream, its consumer, the shard and the records still exist.
        """
        if split is not None and phase is Phase.STREAM and name_of(error) == TAKEN_OVER:
            self._takeovers.count(split.id)
        hint = hint_of(error)
        match judge(error, phase, first=phase not in self._worked):
            case KinesisRemedy.REFRESH:
                caller = None if split is None else split.id
                return Retry(await self._credential_refresh.refused(caller), hint)
            case KinesisRemedy() as remedy:
                if split is None or position is None:
                    return Fatal(hint)
                if remedy is KinesisRemedy.DROP_FRAME:
                    return self._damaged_frames.found(split.id, position)
                return await self._recovery.verdict(remedy, error, split, position)
            case verdict:
                return verdict
