"""Read chosen shards of a stream of Kinesis, and the shards that replace them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.core.findings import named
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.event_time import CarriedWatermarks, EventTime
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Cursor, Position
    from fanout.core.source import Capabilities, Connection, Reserve, Source


@final
@dataclass(frozen=True, slots=True)
class ChosenShards:
    """Read some shards of a source, and their children after a reshard.

    Args:
        source: A stream of Kinesis.
        shards: The ids of the shards, or their numbers. Where several streams are read, one names
            a shard of each of them, unless the name of a stream and a slash are before it.
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
        """Open the connection of the source.

        Args:
            available_now: As for the source.
        """
        ids = {f"shardId-{one:0>12}" if one.isdecimal() else one for one in self.shards}
        async with self.source.connect(available_now=available_now) as connection:
            yield _ChosenConnection(connection, ids)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row of a batch."""
        return self.source.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when one row arrived, in milliseconds since the Unix epoch."""
        return self.source.arrival(records, row)


@final
class _ChosenConnection:
    """A connection that lists the chosen shards and their descendants alone."""

    def __init__(self, connection: Connection, ids: set[str]) -> None:
        self._connection = connection
        self._ids = ids
        self._checked = False

    @property
    def identity(self) -> str:
        return self._connection.identity

    @property
    def pacing(self) -> Pacing:
        return self._connection.pacing

    @property
    def capabilities(self) -> Capabilities:
        return self._connection.capabilities

    async def splits(self) -> Sequence[Split]:
        """List the shards that are read.

        Raises:
            OptionError: The first listing lacks a chosen shard; later it may have expired.
        """
        splits = await self._connection.splits()
        if not self._checked:
            self._ids = self._found({split.id for split in splits})
            self._checked = True
        while (
            children := {split.id for split in splits if self._ids.intersection(split.parents)}
            - self._ids
        ):
            self._ids |= children
        return [split for split in splits if split.id in self._ids]

    def _found(self, listed: set[str]) -> set[str]:
        """Return the listed shards that are chosen; among several streams their ids have a name."""
        chosen = {id_: {id_, id_.rpartition("/")[2]} & self._ids for id_ in listed}
        if unknown := self._ids.difference(*chosen.values()):
            raise OptionError(
                f"shards={min(unknown)!r} is no shard of the stream, or has expired; it has "
                f"{named(listed)}"
            )
        return {id_ for id_, names in chosen.items() if names}

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        return await self._connection.resolve(splits)

    def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch | End]]:
        return self._connection.subscribe(split, position, reserve)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        return await self._connection.verdict(error, phase, split, position)
