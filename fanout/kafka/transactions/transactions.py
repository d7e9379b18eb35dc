"""Transactions of Kafka that several processes share, and that any process can finish.

One process begins a transaction; others write in it with the incarnation that it got; one sets a
marker in it, stores a commit token, and ends it. A process that has nothing but the token can end
it as well, and tell from the marker what has become of it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, final

from aiokafka.errors import ClusterAuthorizationFailedError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.option_checks import number
from fanout.errors import OptionError
from fanout.kafka.consumer_options import ConsumerOptions
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.transactions.calls import Markers, NotYetError, TransactionCalls
from fanout.kafka.transactions.outcome import (
    TransactionOutcome,
    TransactionState,
    outcome_without_marker,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
    from fanout.kafka.transactions.outcome import TransactionDescription

    _T = TypeVar("_T")

__all__ = ("Transactions", "open_transactions")

_DEFAULT_MAX_TIMEOUT: Final = 900.0  # Kafka's default of transaction.max.timeout.ms
_SHORTEST_TIMEOUT: Final = 0.001
_LONGEST_TIMEOUT: Final = (2**31 - 1) / 1000  # the protocol has 32 bits for its milliseconds
# A commit is waited for by readers; what is answered with "not yet" passes in milliseconds.
_WAITS: Final = Backoff(base=0.02, cap=2.0)


@asynccontextmanager
async def open_transactions(
    cluster: Cluster,
    *,
    request_timeout: float = 30.0,
    patience: float = 60.0,
    random: Random | None = None,
) -> AsyncIterator[Transactions]:
    """Connect to a cluster; leaving the context closes every connection, and ends no transaction.

    Args:
        cluster: The cluster.
        request_timeout: Seconds that a broker may take to answer.
        patience: Seconds for which a call is tried again where that may help: Kafka's own default
            of `max.block.ms`.
        random: The source of jitter; pass a seeded one for a repeatable run.

    Raises:
        OptionError: A file cannot be used, or a server would be used without TLS.
    """
    jitter = FullJitter(_WAITS, random or Random())  # noqa: S311 - jitter, no secret
    timeouts = ConsumerOptions(request_timeout=request_timeout)
    async with open_connections(cluster, timeouts) as connections:
        yield Transactions(TransactionCalls(connections), jitter=jitter, patience=patience)


@final
class Transactions:
    """Begin, mark, end and look at transactions; nothing runs in the background.

    Every call is tried again while brokers start, move, or cannot be reached, and raises
    ServiceError when that has taken too long or when the cluster refuses it, with the permission
    that is missing. A call that is cancelled may have been carried out: each may be made again.

    Args:
        calls: Makes each call once.
        jitter: How long to wait before a call is tried again.
        patience: Seconds for which it is tried again.
    """

    def __init__(self, calls: TransactionCalls, *, jitter: FullJitter, patience: float) -> None:
        self._calls = calls
        self._jitter = jitter
        self._patience = patience

    async def max_timeout(self) -> float:
        """Return the longest timeout of a transaction that a broker allows, in seconds.

        Where its configuration may not be read (DESCRIBE_CONFIGS on the cluster), that is Kafka's
        own default, 15 minutes.

        Raises:
            ServiceError: No broker answers.
        """

        async def call() -> float:
            try:
                return await self._calls.max_timeout()
            except ClusterAuthorizationFailedError:
                return _DEFAULT_MAX_TIMEOUT

        return await self._asked("the longest timeout of a transaction cannot be read", call)

    async def begin(self, transactional_id: str, timeout: float) -> Incarnation:  # noqa: ASYNC109 - the broker's
        """Take a transactional id over: whatever is open under it is aborted, and readers get on.

        Everybody who wrote under it before is fenced. It waits until a transaction that was being
        ended has ended everywhere, so that the markers read after it are final.

        Args:
            transactional_id: The id.
            timeout: Seconds after which the broker aborts a transaction of this incarnation.

        Raises:
            OptionError: The timeout is no positive number, or longer than a broker allows.
            ServiceError: The id may not be used, or the cluster does not answer.
        """
        if not _SHORTEST_TIMEOUT <= number("transaction_timeout", timeout) <= _LONGEST_TIMEOUT:
            raise OptionError(
                f"transaction_timeout={timeout} must be from {_SHORTEST_TIMEOUT} to "
                f"{_LONGEST_TIMEOUT:g} seconds"
            )
        doing = f"no transaction of {transactional_id} can be begun"
        begun = await self._asked(doing, lambda: self._calls.begin(transactional_id, timeout))
        if begun is None:
            longest = await self.max_timeout()
            raise OptionError(
                f"transaction_timeout={timeout:g} seconds is longer than the brokers allow "
                f"(transaction.max.timeout.ms, which is {longest:g} seconds): say less, or raise "
                "that"
            )
        return begun

    async def mark(self, token: CommitToken) -> None:
        """Set the marker of a batch in its open transaction; it counts once that is committed.

        It stands in partition 0 of each topic that was written to, so that it is there as long as
        one of them is. A transaction that is not open any more is no error here: what has become of
        it is what `commit` says.

        It is called before `commit`, never after: there it would open a transaction anew.

        Args:
            token: The transaction, whose topics must exist.

        Raises:
            ServiceError: The id, the group or a topic may not be used, a topic does not exist, or
                the cluster does not answer.
        """

        async def call() -> None:
            if await self._calls.announce_mark(token):
                await self._calls.mark(token)

        await self._asked(f"batch {token.batch_id} cannot be marked in its transaction", call)

    async def commit(self, token: CommitToken) -> TransactionOutcome:
        """Commit a transaction that is marked, unless it has ended already, and say how it ended.

        It may be called any number of times, from anywhere, also after later batches. Nothing is
        committed without its marker: what is open without one may be a zombie's, which wrote with
        the same epoch after the transaction was ended. It is tried for the rest of the
        transaction's time where that is longer than the patience.

        Raises:
            ServiceError: The id, the group or a topic may not be used, or the outcome could not be
                found out in time; calling it again later finds it out.
        """
        left = (token.expires_at - datetime.now(UTC)).total_seconds()
        return await self._asked(
            f"it is not known whether batch {token.batch_id} of {token.transactional_id} was "
            "committed",
            lambda: self._commit(token),
            patience=max(left, self._patience),
        )

    async def abort(self, transactional_id: str, incarnation: Incarnation) -> TransactionOutcome:
        """Abort what an incarnation has open, unless it has ended already, and say how it ended.

        Of an incarnation that is not the newest any more, or of any before Kafka 3.0, it is only
        said that it can write no more: whether it had committed before that, its marker tells.

        Raises:
            ServiceError: The id may not be used, or the cluster does not answer.
        """

        async def call() -> TransactionOutcome:
            if await self._calls.end(transactional_id, incarnation, commit=False):
                return TransactionOutcome.ABORTED
            state = await self._calls.describe(transactional_id)
            if state is None:
                return TransactionOutcome.ABORTED
            return outcome_without_marker(incarnation, state)

        return await self._asked(f"a transaction of {transactional_id} cannot be aborted", call)

    async def marked(self, marker_group: str, topics: Sequence[str] = ()) -> int | None:
        """Return the newest batch that is marked as committed; None where none is.

        It is final where nobody else can commit: after `begin`, that is. A transaction that is
        open, or being ended, and has its marker in one of these topics, is waited for.

        Args:
            marker_group: The group.
            topics: Where a transaction may have its marker that is still being ended: those of a
                stored token. All others with a marker are looked at as well.

        Raises:
            ServiceError: The group may not be used, the cluster does not answer, or a transaction
                stays open; `describe` tells that without waiting.
        """

        async def call() -> int | None:
            found = [await self._calls.marks(marker_group, topics)] if topics else []
            found.append(await self._calls.marks(marker_group, None))
            if any(marks.pending for marks in found):
                raise NotYetError(f"a transaction with a marker in {marker_group} is still open")
            return max((marks.newest for marks in found if marks.newest is not None), default=None)

        return await self._asked(f"the marker in {marker_group} cannot be read", call)

    async def marks(self, group: str, topics: Sequence[str], *, stable: bool) -> Markers:
        """Return what is marked in some topics now; see `TransactionCalls.marks`.

        Raises:
            ServiceError: The group may not be used, or the cluster does not answer.
        """
        doing = f"the marker in {group} cannot be read"
        return await self._asked(doing, lambda: self._calls.marks(group, topics, stable=stable))

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has.

        Raises:
            ServiceError: It does not exist, may not be described, or no broker answers.
        """
        doing = f"the partitions of {topic} cannot be counted"
        return await self._asked(doing, lambda: self._calls.partitions(topic))

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """Return where a transactional id stands; None where brokers are older than Kafka 3.0.

        Raises:
            ServiceError: The id may not be described, or the cluster does not answer.
        """
        doing = f"the transactions of {transactional_id} cannot be described"
        return await self._asked(doing, lambda: self._calls.describe(transactional_id))

    async def _commit(self, token: CommitToken) -> TransactionOutcome:
        """Make one attempt, which begins by looking at what the one before it has done."""
        calls = self._calls
        marks = await calls.marks(token.marker_group, token.topics)
        if _has(marks, token):
            return TransactionOutcome.COMMITTED
        if marks.pending and await calls.end(
            token.transactional_id, token.incarnation, commit=True
        ):
            return TransactionOutcome.COMMITTED
        state = await calls.describe(token.transactional_id)
        if not marks.pending:
            return _told(token, state)
        if (
            state is None
            or state.phase is not TransactionState.ONGOING
            or state.incarnation == token.incarnation
        ):
            raise NotYetError("the transaction is still being ended")
        # The marker that is pending is that of a newer transaction, and hides the one before it.
        marks = await calls.marks(token.marker_group, token.topics, stable=False)
        return TransactionOutcome.COMMITTED if _has(marks, token) else TransactionOutcome.FENCED

    async def _asked(
        self, doing: str, call: Callable[[], Awaitable[_T]], *, patience: float | None = None
    ) -> _T:
        return await with_retries(doing, call, self._jitter, patience=patience or self._patience)


def _has(marks: Markers, token: CommitToken) -> bool:
    return marks.newest is not None and marks.newest >= token.batch_id


def _told(token: CommitToken, state: TransactionDescription | None) -> TransactionOutcome:
    """Tell what has become of a transaction without a marker, by the clock where need be."""
    if state is not None:
        return outcome_without_marker(token.incarnation, state)
    return (
        TransactionOutcome.EXPIRED
        if token.expires_at <= datetime.now(UTC)
        else TransactionOutcome.FENCED
    )
