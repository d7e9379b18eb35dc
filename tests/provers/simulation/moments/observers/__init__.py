"""Look at streams from inside while a simulation runs, and note the coincidences they meet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from tests.provers.simulation.moments.observers.calls import together
from tests.provers.simulation.moments.observers.connections import ConnectionObservers
from tests.provers.simulation.moments.observers.jobs import JobObservers
from tests.provers.simulation.moments.observers.services import ServiceObservers
from tests.provers.simulation.moments.observers.streams import StreamObservers
from tests.provers.simulation.moments.observers.subscribers import SubscriberObservers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.provers.simulation.kinesis.service.stream_log import SourceLog

__all__ = ("Observers",)


@final
class Observers:
    """Look at everything in one run.

    `moments` counts how often each coincidence was met, by its sentence.

    Args:
        log: What the stream holds.
    """

    def __init__(self, log: SourceLog) -> None:
        self.moments: Counter[str] = Counter()
        connections = ConnectionObservers(self.moments)
        streams = StreamObservers(self.moments, log, connections)
        self._all = (
            connections,
            streams,
            SubscriberObservers(self.moments, streams),
            ServiceObservers(self.moments, streams),
            JobObservers(self.moments),
        )

    def installed(self) -> AbstractContextManager[None]:
        """Look for as long as the block runs; every stream of this interpreter is looked at."""
        return together(*(observers.installed() for observers in self._all))
