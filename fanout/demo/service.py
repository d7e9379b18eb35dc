"""The seam between the demo and the service that it breaks, and the producer that fills it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.demo.plan import Act
    from fanout.demo.records import Record, SentRecord
    from fanout.demo.sources import SourceSettings

# The limit of one PutRecords call (AWS API reference); it suits Kafka as well.
MAX_CALL_RECORDS: Final = 500

_CALLS_PER_SECOND = 10

STREAM: Final = "orders"
"""The name of the stream or topic."""


@final
@dataclass(frozen=True, slots=True)
class Done:
    """The result of an act.

    Args:
        told: What was done, for people.
        ended: The splits that it has closed.
        born: The splits that it has made.
    """

    told: str
    ended: tuple[str, ...] = ()
    born: tuple[str, ...] = ()


class DemoService(Protocol):
    """A service that runs on this machine for one run of the demo, with a stream in it."""

    @property
    def settings(self) -> SourceSettings:
        """The settings with which the Spark driver reads the stream."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that are added to the environment of the Spark driver."""

    def connect(self) -> AbstractAsyncContextManager[DemoStream]:
        """Hold on to the stream while the block runs.

        Cancellation: what is on its way is given up.
        """

    def faults(self) -> Mapping[str, int]:
        """Count the faults that have struck, by their kinds."""


class DemoStream(Protocol):
    """A hold on the stream."""

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records, until the service has taken each of them exactly once.

        Returns:
            The records with their places, in any order.

        Raises:
            DemoFailedError: If it cannot be known what has become of a record.
        """

    async def perform(self, act: Act) -> Done:
        """Carry out one act on the splits that are there now."""

    async def parents(self) -> Mapping[str, Sequence[str]]:
        """Return the parents of every split that there has been."""


async def produce(
    stream: DemoStream, records: Iterable[Record], *, rate: float
) -> AsyncGenerator[Sequence[SentRecord], None]:
    """Send records at a pace, and yield those of each call as the service has placed them.

    Args:
        stream: Where to send them.
        records: What to send.
        rate: Records per second, if the service keeps up.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    size = min(MAX_CALL_RECORDS, max(1, round(rate / _CALLS_PER_SECOND)))
    left = iter(records)
    sent = 0
    while call := list(islice(left, size)):
        yield await stream.put(call)
        sent += len(call)
        await asyncio.sleep(begun + sent / rate - loop.time())
