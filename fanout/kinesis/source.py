"""Read a Kinesis stream as a source: the user's frozen description of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout._exports import require
from fanout.core.cancellation import in_thread
from fanout.kinesis.options import KinesisOptions
from fanout.kinesis.reading.decode import SCHEMA, arrival, cursor_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kinesis.chosen_shards import ChosenConnection
    from fanout.kinesis.connection import KinesisConnection
    from fanout.kinesis.streams_connection import StreamsConnection

require("aioboto3")  # it is loaded when a stream is opened


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisSource(KinesisOptions):
    """Read a Kinesis stream or several; the arguments are those of KinesisOptions."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record, named as the Databricks connector names them.

        With `decode` they are the columns that it returns.
        """
        decode = self.user_decode
        return SCHEMA if decode is None else decode.schema

    @asynccontextmanager
    async def connect(
        self, *, available_now: bool = False
    ) -> AsyncIterator[KinesisConnection | StreamsConnection | ChosenConnection]:
        """Connect, check that each stream exists, and ensure that its consumer is ACTIVE.

        In polling no consumer is needed or described.

        With `deregister="on_close"`, leaving the context deregisters a consumer that was registered
        here. That takes 10 seconds at most; if the task is cancelled again, the consumer stays, and
        a warning is logged.

        Args:
            available_now: Has no effect: only an answer to reading a shard shows whether its newest
                record has been read.

        Raises:
            SetupError: If credentials or a region are missing, or the streams have more shards
                than this process may open files.
            OptionError: If the consumer is one of another account's stream.
            ServiceError: If a stream or consumer does not exist or may not be used, or the
                endpoint does not answer.
        """
        del available_now
        opening = await in_thread(_load)
        async with opening(self) as connection:
            yield connection

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row: inside its record if the next row belongs to it too.

        Args:
            batch: The batch with all its rows, so that a record's last row is its last sub-record.
            row: The index of the row.
        """
        return cursor_after(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when a row arrived, in milliseconds since the Unix epoch; None if not sent."""
        return arrival(records, row)


def _load() -> Callable[
    [KinesisSource],
    AbstractAsyncContextManager[KinesisConnection | StreamsConnection | ChosenConnection],
]:
    """Load the AWS SDK, which takes longer than all the rest; return what opens a source."""
    from fanout.kinesis.opening import open_source  # noqa: PLC0415 - see above

    return open_source
