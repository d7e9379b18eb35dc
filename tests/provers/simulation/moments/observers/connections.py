"""Look at what a stream does about its service."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.core.policy import Finish, Retry
from fanout.kinesis.aws.credentials import CredentialRefresh
from fanout.kinesis.connection import KinesisConnection
from fanout.kinesis.reading.polling import Poller
from fanout.kinesis.reading.recovery import Recovery
from tests.provers.simulation.kinesis.service.client import KinesisSimClient
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.moments.observers.calls import after, around, before, together

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fanout.core.events import Split
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Connection, Reserve
    from tests.provers.simulation.job.process_run import ProcessRun

__all__ = ("ConnectionObservers", "run_of")

_SEVERAL: Final = 2


@final
class ConnectionObservers:
    """Look at the connections of one run.

    Args:
        moments: Counts what is met.
    """

    def __init__(self, moments: Counter[str]) -> None:
        self._moments = moments
        self._looking: Counter[Recovery] = Counter()
        self._refused: Counter[CredentialRefresh] = Counter()
        self._hurried: dict[Connection, None] = {}
        self._going_on: set[tuple[Poller, str]] = set()

    def installed(self) -> AbstractContextManager[None]:
        """Look for as long as the block runs."""
        return together(
            around(KinesisConnection, "splits", self._lists),
            around(Poller, "_poll_on", self._polls_on),
            before(Poller, "_poll_from", self._polls_from),
            around(Recovery, "_check_stream", self._looks),
            after(Recovery, "_check_consumer", self._looked_at_consumer),
            before(Recovery, "_after_failed_check", self._is_blind),
            after(Recovery, "_confirm_end", self._half_an_end),
            around(CredentialRefresh, "refused", self._is_refused),
            after(CredentialRefresh, "_try_to_renew", self._renewed),
        )

    def hurries(self, connection: Connection) -> None:
        """Record that the end of a shard asks for a listing."""
        self._hurried[connection] = None

    def looks(self, connection: Connection) -> bool:
        """Say whether it is just being found out what became of a shard."""
        assert isinstance(connection, KinesisConnection)
        return self._looking[connection._recovery] > 0

    @contextmanager
    def _lists(self, connection: KinesisConnection) -> Iterator[None]:
        hurried = connection in self._hurried
        self._hurried.pop(connection, None)
        try:
            yield
        except Exception:  # it is counted, and passes on
            self._moments[KinesisSometimes.HURRIED_LISTING_FAILED] += hurried
            raise

    @contextmanager
    def _polls_on(
        self, poller: Poller, _: str, __: Position, split: Split, ___: Reserve
    ) -> Iterator[None]:
        self._going_on.add((poller, split.id))
        try:
            yield
        finally:
            self._going_on.remove((poller, split.id))

    def _polls_from(self, poller: Poller, _: Position, split: Split, __: Reserve) -> None:
        if (poller, split.id) in self._going_on:
            self._moments[KinesisSometimes.ITERATOR_EXPIRED] += 1

    @contextmanager
    def _looks(self, recovery: Recovery) -> Iterator[None]:
        self._looking[recovery] += 1
        try:
            yield
        finally:
            self._looking[recovery] -= 1

    def _looked_at_consumer(self, verdict: Verdict | None, recovery: Recovery) -> None:
        together = isinstance(verdict, Retry) and self._looking[recovery] >= _SEVERAL
        self._moments[KinesisSometimes.REGISTERED_FOR_SEVERAL] += together

    def _is_blind(self, *_: object) -> None:
        self._moments[KinesisSometimes.LOOK_FAILED] += 1

    def _half_an_end(self, verdict: Verdict, *_: object) -> None:
        self._moments[KinesisSometimes.END_CONFIRMED] += isinstance(verdict, Finish)

    @contextmanager
    def _is_refused(self, access: CredentialRefresh, *_: object) -> Iterator[None]:
        self._refused[access] += 1
        try:
            yield
        finally:
            self._refused[access] -= 1

    def _renewed(self, _: None, access: CredentialRefresh) -> None:
        self._moments[KinesisSometimes.RENEWED_FOR_SEVERAL] += self._refused[access] >= _SEVERAL


def run_of(connection: Connection) -> ProcessRun:
    """Return the process that a connection belongs to."""
    assert isinstance(connection, KinesisConnection)
    assert isinstance(connection._client, KinesisSimClient)
    return connection._client._run
