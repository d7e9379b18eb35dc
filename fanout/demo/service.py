"""The seam between the demo and the service that it breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.demo.plan import Act
    from fanout.demo.records import Record
    from fanout.demo.sources import SourceSettings
    from fanout.demo.verification import SentRecord

__all__ = ("STREAM", "Done", "Service", "Stream")

STREAM: Final = "orders"
"""The name of the stream or topic."""


@final
@dataclass(frozen=True, slots=True)
class Done:
    """What an act has done.

    Args:
        told: What was done, for people.
        ended: The splits that it has closed.
        born: The splits that it has made.
    """

    told: str
    ended: tuple[str, ...] = ()
    born: tuple[str, ...] = ()


class Service(Protocol):
    """A service that runs on this machine for one run of the demo, with a stream in it."""

    @property
    def settings(self) -> SourceSettings:
        """What the Spark driver needs to know to read the stream."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What is added to the environment of the Spark driver."""

    def connect(self) -> AbstractAsyncContextManager[Stream]:
        """Hold on to the stream while the block runs.

        Cancellation: what is on its way is given up.
        """

    def faults(self) -> Mapping[str, int]:
        """Count the faults that have struck, by their kinds."""


class Stream(Protocol):
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
