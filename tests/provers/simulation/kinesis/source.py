"""A Kinesis source whose calls a simulated service answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Final, final

from fanout.kinesis.opening import open_kinesis_connection
from fanout.kinesis.source import KinesisSource
from tests.provers.simulation.kinesis.service.service import CONSUMER, CONSUMER_ARN, STREAM
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    import pyarrow as pa

    from fanout.core.event_time import EventTime
    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kinesis.connection import KinesisConnection
    from tests.provers.simulation.kinesis.plan import KinesisPlan
    from tests.provers.simulation.kinesis.service.client import KinesisSimClient
    from tests.provers.simulation.kinesis.service.service import KinesisSimService

__all__ = ("KinesisSimSource", "kinesis_options")

# What an event takes beside its records: its headers, its continuation, two child shards.
_BESIDE_RECORDS: Final = 2000


@final
@dataclass(frozen=True, slots=True)
class KinesisSimSource:
    """A Kinesis source whose calls a simulated service answers.

    Args:
        kinesis: The source that the user declares.
        client: The calls.
        random: The source of randomness for the wait until a consumer is ACTIVE.
        pending_subscribes: How many subscribe calls may be under way at once.
    """

    kinesis: KinesisSource
    client: KinesisSimClient
    random: Random
    pending_subscribes: int = 64

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record."""
        return self.kinesis.schema

    @property
    def event_time(self) -> EventTime | None:
        """The event time of a record."""
        return self.kinesis.event_time

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[KinesisConnection]:
        """Connect as the real source does, over the simulated client."""
        del available_now
        async with open_kinesis_connection(self.kinesis, self.client, self.random) as connection:
            pending = self.pending_subscribes
            connection.pacing = replace(connection.pacing, max_pending_subscribes=pending)
            yield connection

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row."""
        return self.kinesis.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when a row arrived at the service."""
        return self.kinesis.arrival(records, row)


def kinesis_options(plan: KinesisPlan, service: KinesisSimService) -> KinesisSource:
    """Return what the user of a plan's job asks for.

    Args:
        plan: The plan.
        service: What the job is going to read.
    """
    began = datetime.fromtimestamp(EPOCH_MILLIS / 1000, UTC)
    options = KinesisSource(
        stream=STREAM,
        consumer=CONSUMER_ARN if plan.consumer == "arn" else CONSUMER,
        mode=plan.mode,
        start=began if plan.start == "AT_TIMESTAMP" else plan.start,
        on_data_loss="earliest",
        discovery_interval=plan.listing_every,
        deregister=plan.deregister if plan.consumer == "name" else "never",
        on_bad_aggregate=plan.on_bad_aggregate,
        on_bad_frame=plan.on_bad_frame,
    )
    if not plan.tight:
        return options
    largest = _largest_event(service)
    return replace(options, max_event_bytes=largest, max_bytes_in_flight=largest)


def _largest_event(service: KinesisSimService) -> int:
    """Return how many bytes the largest event takes that a service may send."""
    rules = service.rules
    largest, most = 0, max(rules.max_event_records, rules.max_poll_records)
    for shard in service.log.shards.values():
        ends = [0, *accumulate(len(record.encoded) + 1 for record in shard.records)]
        spans = (end - ends[max(0, place - most)] for place, end in enumerate(ends))
        largest = max(largest, *spans)
    return largest + _BESIDE_RECORDS
