"""Connect one running stream to several streams of Kinesis, each over a connection of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, final

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.error_text import text_of
from fanout.core.policy import Finish
from fanout.core.positions import Cursor
from fanout.core.sentence import Option
from fanout.core.source import Capabilities, Terms
from fanout.core.starts import PerSplit
from fanout.core.statistics import Origin
from fanout.errors import OptionError, ServiceError
from fanout.kinesis.aws.error_hints import name_of
from fanout.kinesis.starting_position import describe_position, resolve_start
from fanout.kinesis.stream_positions import (
    StreamSplits,
    adopt,
    identity_of_several,
    stored_streams,
    stream_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.connection import KinesisConnection
    from fanout.kinesis.options import KinesisOptions


class ListingError(Exception):
    """The shards of one of the streams cannot be listed; the cause is the service's error."""

    def __init__(self, stream: str, error: Exception) -> None:
        super().__init__(f"the stream {stream!r}: {text_of(error)}")
        self.stream = stream
        self.error = error


@final
class StreamsConnection:
    """Read several streams: a split is a shard of one of them, and errors are judged by its own."""

    def __init__(self, options: KinesisOptions, connections: Sequence[KinesisConnection]) -> None:
        self._options = options
        self._connections = {one.stream.name: one for one in connections}
        self._names = {name: StreamSplits(name) for name in self._connections}
        self.identity = identity_of_several(one.stream for one in connections)
        self.capabilities = Capabilities(
            reads=lambda split: stream_of(split.id) in self._connections,
            adopt=self._adopt,
            terms=Terms("shard", describe_position, name_of),
            origin=Origin("aws_kinesis", ",".join(self._connections), options.consumer),
            decode=options.decoder,
        )
        self.pacing: Pacing = options.pacing

    async def splits(self) -> Sequence[Split]:
        """List the shards of all streams, with their parents."""
        listed: list[Split] = []
        for name, connection in self._connections.items():
            try:
                listed += self._names[name].splits(await connection.splits())
            except ServiceError as error:
                raise ServiceError(f"the stream {name!r}: ", error) from error
            except Exception as error:
                raise ListingError(name, error) from error
        return listed

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the start into a position for each shard; see `KinesisConnection.resolve`."""
        # A mapping may name a stream for all of its shards that it does not name.
        start = self._options.start
        if isinstance(start, PerSplit):
            start = self._of_each_shard(start, splits)
        times = [connection.stream.server_time for connection in self._connections.values()]
        return resolve_start(start, splits, min(times))

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Open one subscription to a shard; see `KinesisConnection.subscribe`."""
        name = stream_of(split.id)
        names = self._names[name]
        opening = self._connections[name].subscribe(names.shard(split), position, reserve)
        async with opening as events:
            yield _NamedEvents(events, names, split)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Judge an error of one stream; see `KinesisConnection.verdict`."""
        if split is not None:
            name = stream_of(split.id)
            names = self._names[name]
            judging = self._connections[name].verdict(error, phase, names.shard(split), position)
            verdict = await judging
            if isinstance(verdict, Finish):
                return replace(verdict, children=names.splits(verdict.children))
            return verdict
        if isinstance(error, ListingError):
            return await self._connections[error.stream].verdict(error.error, phase)
        return await next(iter(self._connections.values())).verdict(error, phase)

    async def _adopt(self, checkpoint: Checkpoint, splits: Sequence[Split]) -> Checkpoint | None:
        """Continue stored positions; a stream that is new to them begins at the start."""
        streams = [connection.stream for connection in self._connections.values()]
        adopted = adopt(checkpoint, streams)
        if adopted is None:
            return None
        known = stored_streams(checkpoint.source)
        new = [split for split in splits if stream_of(split.id) not in known]
        if not new:
            return adopted
        positions = await self.resolve(new)
        added = {split.id: SplitPosition(split, positions[split.id]) for split in new}
        return replace(adopted, splits=MappingProxyType({**adopted.splits, **added}))

    def _of_each_shard(self, start: PerSplit, splits: Iterable[Split]) -> PerSplit:
        """Return a start that names shards where it named streams."""
        # What it says of streams that the splits are not of was for an earlier run.
        streams = {stream_of(split.id) for split in splits}
        known = self._connections.keys() - streams
        named = {name: its for name, its in start.named if stream_of(name) not in known}
        for name in streams & named.keys():
            its = named.pop(name)
            if isinstance(its, Cursor):
                raise OptionError(
                    Option("start"), f"[{name!r}] is a place in one shard; name the shard"
                )
            for split in splits:
                if stream_of(split.id) == name:
                    named.setdefault(split.id, its)
        return PerSplit(tuple(sorted(named.items(), key=lambda item: item[0])), start.others)


@final
class _NamedEvents:
    """Pass the events of a shard on as those of its split."""

    def __init__(
        self, events: AsyncIterator[Batch | End], names: StreamSplits, split: Split
    ) -> None:
        self._events = events
        self._names = names
        self._split = split

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch | End:
        return self._names.event(await anext(self._events), self._split)
