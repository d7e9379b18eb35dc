"""One running stream's hold on Kinesis."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC
from typing import TYPE_CHECKING, final

from fanout.core.policy import Fatal, Phase, Retry
from fanout.core.source import Capabilities
from fanout.core.subscription import Tap
from fanout.kinesis.aws.credential_refresh import CredentialRefresh
from fanout.kinesis.aws.error_hints import hint_of
from fanout.kinesis.policy import Remedy, judge
from fanout.kinesis.reading.deaggregation import Deaggregator
from fanout.kinesis.reading.polling import Poller
from fanout.kinesis.reading.recovery import DamagedFrames, Recovery
from fanout.kinesis.reading.subscription import read_events
from fanout.kinesis.shards import ShardCatalog
from fanout.kinesis.starting_position import resolve_start, starting_position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.aws.api import KinesisClient, StreamDescription
    from fanout.kinesis.options import KinesisOptions
    from fanout.kinesis.registration import ConsumerRegistration

__all__ = ("KinesisConnection", "identity")


@final
class KinesisConnection:
    """One running stream's hold on Kinesis.

    Args:
        options: What the user asked for.
        client: The calls.
        stream: The stream, as the service described it when the connection was opened.
        registration: The consumer that subscribes; None to poll.
    """

    capabilities = Capabilities()

    def __init__(
        self,
        options: KinesisOptions,
        client: KinesisClient,
        stream: StreamDescription,
        registration: ConsumerRegistration | None,
    ) -> None:
        self._options = options
        self._client = client
        self._stream = stream
        self._registration = registration
        self._catalog = ShardCatalog(client)
        self._triage = Recovery(
            client,
            stream.name,
            self._catalog,
            registration,
            on_data_loss=options.on_data_loss,
        )
        self._worked: set[Phase] = set()
        self._access = CredentialRefresh(client.renew_credentials)
        self._bad_frames = DamagedFrames(options.on_bad_frame)
        self._deaggregator = Deaggregator(options.on_bad_aggregate)
        self._poller = Poller(
            client,
            stream,
            max_event_bytes=options.max_event_bytes,
            deaggregator=self._deaggregator,
        )
        self.identity = identity(stream)
        self.pacing: Pacing = options.pacing

    async def splits(self) -> Sequence[Split]:
        """List the shards within the retention period, with their parents."""
        self._access.calling(None)
        splits = await self._catalog.refresh()
        self._access.allowed(None)
        self._worked.add(Phase.DISCOVER)
        for shard in self._catalog.listed.values():
            self._deaggregator.set_hash_range(shard.shard_id, shard.hash_range)
        return splits

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the start into a position for each shard.

        Latest becomes the service's own time, so that neither a skewed clock of this machine nor
        a failed first subscription skips a record. The service tells it in whole seconds, so
        records of up to one second before may come as well. Closed shards begin there too: they
        end at once, and their children begin at that time instead of at their horizon.

        Raises:
            OptionError: If the start is a mapping that does not fit the shards, or a function that
                raised or returned none.
        """
        return resolve_start(self._options.start, splits, self._stream.server_time)

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Open one subscription to a shard: for up to five minutes, or in polling until it ends."""
        self._access.calling(split.id)
        async with AsyncExitStack() as stack:
            if self._registration is None:
                events = await self._poller.open(split, position, reserve)
            else:
                subscribing = self._client.subscribe(
                    self._registration.arn, split.id, starting_position(position)
                )
                events = read_events(
                    await stack.enter_async_context(subscribing),
                    split,
                    position,
                    stream=self._stream.name,
                    max_event_bytes=self._options.max_event_bytes,
                    deaggregator=self._deaggregator,
                    reserve=reserve,
                    droppable=self._bad_frames.droppable(split.id, position),
                )
            await stack.enter_async_context(aclosing(events))
            self._worked.add(Phase.SUBSCRIBE)
            yield Tap(events, self._notice)

    def _notice(self, event: Batch | End) -> None:
        self._worked.add(Phase.STREAM)
        self._access.allowed(event.split.id)
        self._triage.check(event)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Say what an error means, by the table in `fanout.kinesis.policy`.

        Where the table wants to know what became of a shard, the service is asked.
        """
        hint = hint_of(error)
        match judge(error, phase, first=phase not in self._worked):
            case Remedy.REFRESH:
                caller = None if split is None else split.id
                return Retry(await self._access.refused(caller), hint)
            case Remedy() as remedy:
                if split is None or position is None:
                    return Fatal(hint)
                if remedy is Remedy.DROP_FRAME:
                    return self._bad_frames.found(split.id, position)
                return await self._triage.verdict(remedy, error, split, position)
            case verdict:
                return verdict


def identity(stream: StreamDescription) -> str:
    """Return what the positions of a stream are stored under."""
    # A stream that replaces another has its name, ARN and shard ids, but none of its records.
    created = stream.created.astimezone(UTC).isoformat(timespec="milliseconds")
    return f"kinesis:{stream.arn} of {created}"
