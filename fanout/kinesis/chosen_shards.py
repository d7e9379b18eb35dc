"""Read chosen shards of Kinesis, and the shards that replace them after a reshard."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, final

from fanout.core.events import End
from fanout.core.findings import named
from fanout.core.policy import Finish
from fanout.core.sentence import Option
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.checkpoint import Checkpoint, SplitPosition
    from fanout.core.event_time import CarriedWatermarks, EventTime
    from fanout.core.events import Batch, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Cursor, Position
    from fanout.core.source import Capabilities, Connection, Reserve, Source


@final
class ShardChoice:
    """Know which shards are chosen: those that are named, and their children from then on.

    Of readers that divide a stream, one has the child of a merge: the reader of the parent whose id
    is lower. With `any_parent` either parent will do, for a reader that divides nothing. Where
    several streams are read, a name is a shard of each of them, unless the name of a stream and a
    slash are before it.
    """

    def __init__(self, names: Iterable[str], *, any_parent: bool = False) -> None:
        self._names = frozenset(names)
        self._any_parent = any_parent
        self._ids: set[str] = set()
        self._checked = False

    def __contains__(self, split: Split) -> bool:
        return self._has(split.id)

    def _has(self, split_id: str) -> bool:
        return split_id in self._ids or bool({split_id, split_id.rpartition("/")[2]} & self._names)

    def of(self, listed: Sequence[Split]) -> list[Split]:
        """Return the chosen shards of a listing; the first must have each shard that is named."""
        # In a later listing a named shard may have expired.
        if not self._checked:
            self._check(listed)
            self._checked = True
        self.learn(listed)
        return [split for split in listed if split in self]

    def learn(self, splits: Sequence[Split]) -> None:
        """Take in shards; those that continue chosen ones are chosen, however far down."""
        left = [split for split in splits if split not in self]
        while chosen := [split for split in left if self._continues(split)]:
            self._ids.update(split.id for split in chosen)
            left = [split for split in left if split not in self]

    def check_stored(self, stored: Iterable[SplitPosition], listed: Iterable[Split]) -> None:
        """Check that no stored shard may continue a named one through shards that are forgotten.

        Call it when both are learned. A reader forgets what it has read when it has expired.
        """
        states = [*stored]
        known = {split.id: split for split in [*listed, *(state.split for state in states)]}
        expired = self._names - known.keys() - {id_.rpartition("/")[2] for id_ in known}
        unread = (state.split for state in states if not state.ended)
        lost = sorted(split.id for split in unread if not self._is_traced(split, known))
        if expired and lost:
            raise OptionError(
                Option("shards", min(expired)),
                f" has expired, and it is not known any more whether {named(lost)} continue it; "
                "name the shards to read, these among them",
            )

    def _is_traced(self, split: Split, known: Mapping[str, Split]) -> bool:
        """Say whether a shard is chosen, or has known ancestors alone."""
        return split in self or all(
            parent in known and self._is_traced(known[parent], known)
            for parent in self._followed(split)
        )

    def _continues(self, split: Split) -> bool:
        return any(self._has(parent) for parent in self._followed(split))

    def _followed(self, split: Split) -> Sequence[str]:
        """Return the parents with any of which a shard is chosen."""
        return split.parents if self._any_parent else sorted(split.parents)[:1]

    def _check(self, listed: Iterable[Split]) -> None:
        """Check that each shard that is named is listed, or has been a parent of one that is."""
        ids = {split.id for split in listed}
        known = ids.union(*(split.parents for split in listed))
        unknown = self._names - known - {id_.rpartition("/")[2] for id_ in known}
        if unknown:
            raise OptionError(
                Option("shards", min(unknown)),
                f" is no shard of the stream, or has expired; it has {named(ids)}",
            )


@final
class ChosenConnection:
    """A connection of Kinesis that reads chosen shards alone."""

    def __init__(self, connection: Connection, choice: ShardChoice) -> None:
        self._connection = connection
        self._choice = choice
        self._all = connection.capabilities
        self.capabilities: Capabilities = replace(self._all, reads=self._reads, adopt=self._adopt)

    @property
    def identity(self) -> str:
        """The identity of the stream: the positions of its shards are the same in every choice."""
        return self._connection.identity

    @property
    def pacing(self) -> Pacing:
        """The pacing of calls."""
        return self._connection.pacing

    async def splits(self) -> Sequence[Split]:
        """List the shards that are read."""
        return self._choice.of(await self._connection.splits())

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the start into a position for each shard that is read."""
        return await self._connection.resolve(splits)

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Open one subscription to a shard; its end names those of its children that are read."""
        async with self._connection.subscribe(split, position, reserve) as events:
            yield _ChosenEvents(events, self._choice)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Judge an error; see `KinesisConnection.verdict`."""
        verdict = await self._connection.verdict(error, phase, split, position)
        if isinstance(verdict, Finish):
            return replace(verdict, children=_chosen(self._choice, verdict.children))
        return verdict

    def _reads(self, split: Split) -> bool:
        return self._all.reads(split) and split in self._choice

    async def _adopt(self, checkpoint: Checkpoint, splits: Sequence[Split]) -> Checkpoint | None:
        """Continue stored positions, and find out which of them are those of chosen shards."""
        adopted: Checkpoint | None
        if self._all.adopt is not None:
            adopted = await self._all.adopt(checkpoint, splits)
        else:
            adopted = checkpoint if checkpoint.source == self.identity else None
        if adopted is not None:
            states = adopted.splits.values()
            self._choice.learn([state.split for state in states])
            self._choice.check_stored(states, splits)
        return adopted


@final
class _ChosenEvents:
    """Pass the events of a shard on; its end names those of its children that are read."""

    def __init__(self, events: AsyncIterator[Batch | End], choice: ShardChoice) -> None:
        self._events = events
        self._choice = choice

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch | End:
        event = await anext(self._events)
        if isinstance(event, End):
            return replace(event, children=_chosen(self._choice, event.children))
        return event


def _chosen(choice: ShardChoice, children: tuple[Split, ...]) -> tuple[Split, ...]:
    choice.learn(children)
    return tuple(child for child in children if child in choice)


@final
@dataclass(frozen=True, slots=True)
class ChosenShards:
    """Read some shards of a source, and their children after a reshard.

    Unlike with the option `shards` of a source, a child of a merge is read with either parent. A
    shard is named by its id or its number. Where several streams are read, that names a shard of
    each of them, unless the name of a stream and a slash are before it.
    """

    source: Source
    shards: Sequence[str]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records in a batch."""
        return self.source.schema

    @property
    def event_time(self) -> EventTime | CarriedWatermarks | None:
        """What watermarks are taken from."""
        return self.source.event_time

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[Connection]:
        """Open the connection of the source."""
        ids = {f"shardId-{one:0>12}" if one.isdecimal() else one for one in self.shards}
        async with self.source.connect(available_now=available_now) as connection:
            yield ChosenConnection(connection, ShardChoice(ids, any_parent=True))

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row of a batch."""
        return self.source.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when one row arrived, in milliseconds since the Unix epoch."""
        return self.source.arrival(records, row)
