"""The interface of the demo to a service and its stream, and the producer that fills it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.demo.plan import Action
    from fanout.demo.records import Record, SentRecord
    from fanout.demo.sources import SourceSettings

# The limit of one PutRecords call (AWS API reference); it fits Kafka as well.
MAX_CALL_RECORDS: Final = 500

_CALLS_PER_SECOND = 10

STREAM: Final = "orders"
"""The name of the stream or topic."""


@final
@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an action.

    Args:
        description: The action, for people.
        ended: The splits that the action has closed.
        born: The splits that the action has created.
    """

    description: str
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
        """Connect to the stream while the block runs.

        Cancellation: records in flight are dropped.
        """

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""


class DemoStream(Protocol):
    """A connection to the stream."""

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records, until the service has stored each of them exactly once.

        Returns:
            The records with their sequence numbers, in any order.

        Raises:
            DemoFailedError: If it is unknown whether a record was stored.
        """

    async def perform(self, action: Action) -> ActionResult:
        """Carry out one action on the splits that exist now."""

    async def parents(self) -> Mapping[str, Sequence[str]]:
        """Return the parents of every split, closed ones included."""


async def produce(
    stream: DemoStream, records: Iterable[Record], *, rate: float
) -> AsyncGenerator[Sequence[SentRecord], None]:
    """Send records at a rate, and yield those of each call as the service has stored them.

    Args:
        stream: The stream.
        records: The records to send.
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
