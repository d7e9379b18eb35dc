"""Transactions of Kafka that several processes write in, and that any process can finish.

One process begins a transaction and others write in it with its producer id and epoch; one process
sets a marker in it, stores a commit token, and ends it. Any process with the token can end it too,
and learn from the marker how it ended.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, final

from aiokafka.errors import ClusterAuthorizationFailedError, UnknownTopicOrPartitionError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.option_checks import number
from fanout.core.sentence import Option
from fanout.errors import OptionError, ServiceError
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.protocol.connections import CallTimeouts
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.transactions.calls import Markers, NotYetError, TransactionCalls
from fanout.kafka.transactions.outcome import (
    TransactionOutcome,
    TransactionState,
    TransactionStatus,
    outcome_without_marker,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from fanout.core.positions import Cursor
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.group.calls import GroupOffsets
    from fanout.kafka.partitions import Partition
    from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
    from fanout.kafka.transactions.outcome import TransactionDescription

    _T = TypeVar("_T")

_DEFAULT_MAX_TIMEOUT: Final = 900.0  # Kafka's default of transaction.max.timeout.ms
_SHORTEST_TIMEOUT: Final = 0.001
_LONGEST_TIMEOUT: Final = (2**31 - 1) / 1000  # the protocol has 32 bits for its milliseconds
# Readers wait for a commit, and an answer "not yet" passes in milliseconds.
_WAITS: Final = Backoff(base=0.02, cap=2.0)


@asynccontextmanager
async def open_transactions(
    cluster: Cluster,
    *,
    request_timeout: float = 30.0,
    patience: float = 60.0,
    random: Random | None = None,
) -> AsyncIterator[Transactions]:
    """Connect to a cluster; leaving the context closes all connections, and ends no transaction.

    A call is tried again for `patience` seconds where that may help: Kafka's default of
    `max.block.ms`.
    """
    jitter = FullJitter(_WAITS, random or Random())  # noqa: S311 - jitter, no secret
    timeouts = CallTimeouts(request_timeout)
    async with open_cluster(cluster, timeouts) as connections:
        yield Transactions(TransactionCalls(connections), jitter=jitter, patience=patience)


@final
class Transactions:
    """Begin, mark, end and describe transactions; nothing runs in the background.

    Every call is retried while brokers start, move, or cannot be reached. It raises ServiceError
    when that takes too long, or when the cluster refuses it, with the missing permission. A
    cancelled call may have been carried out, and every call may be repeated.
    """

    def __init__(self, calls: TransactionCalls, *, jitter: FullJitter, patience: float) -> None:
        self._calls = calls
        self._jitter = jitter
        self._patience = patience

    async def max_timeout(self) -> float:
        """Return the longest timeout of a transaction that a broker allows, in seconds.

        Without permission to read its configuration (DESCRIBE_CONFIGS on the cluster), or where a
        compatible broker does not report it, that is Kafka's default, 15 minutes.
        """

        async def call() -> float:
            try:
                return await self._calls.max_timeout() or _DEFAULT_MAX_TIMEOUT
            except ClusterAuthorizationFailedError:
                return _DEFAULT_MAX_TIMEOUT

        return await self._retried("the longest timeout of a transaction cannot be read", call)

    async def begin(self, transactional_id: str, timeout: float) -> Incarnation:  # noqa: ASYNC109 - the broker's
        """Begin a new run of a transactional id, which aborts its open transaction.

        All former producers of the id are fenced. The call waits until a transaction that is being
        ended has ended in all partitions, so that markers read afterwards are final. OptionError is
        raised if the timeout, in seconds, is not positive, or longer than a broker allows.
        """
        if not _SHORTEST_TIMEOUT <= number("transaction_timeout", timeout) <= _LONGEST_TIMEOUT:
            raise OptionError(
                Option("transaction_timeout", timeout),
                f" must be from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:g} seconds",
            )
        doing = f"no transaction of {transactional_id} can be begun"
        begun = await self._retried(doing, lambda: self._calls.begin(transactional_id, timeout))
        if begun is None:
            longest = await self.max_timeout()
            raise OptionError(
                Option("transaction_timeout", timeout, text=f"transaction_timeout={timeout:g}"),
                " seconds is longer than the brokers allow (transaction.max.timeout.ms, which is "
                f"{longest:g} seconds): lower it, or raise theirs",
            )
        return begun

    async def mark(self, token: CommitToken, content: str = "") -> None:
        """Set the marker of a batch in its open transaction; the commit makes it valid.

        The marker is an offset in partition 0 of each topic of the transaction, so it exists as
        long as one of these topics does. A transaction that is not open any more is no error here:
        `commit` returns how it ended. Call it before `commit`, never after, where it would open a
        new transaction. `content` is what the marker tells of its batch.
        """

        async def call() -> None:
            if await self._calls.add_marker_group(token):
                await self._calls.mark(token, content)

        await self._retried(f"batch {token.batch_id} cannot be marked in its transaction", call)

    async def commit(self, token: CommitToken) -> TransactionOutcome:
        """Commit a marked transaction, unless it has ended already, and return how it ended.

        It may be called any number of times, in any process, also after later batches. Only a
        marked transaction is committed: an open one without a marker may be a zombie's, which wrote
        with the same epoch after the end of this one. The call is retried until the transaction
        expires, if that is longer than the patience; then ServiceError means that the outcome is
        not known, and a later call returns it.
        """
        left = (token.expires_at - datetime.now(UTC)).total_seconds()
        return await self._retried(
            f"it is not known whether batch {token.batch_id} of {token.transactional_id} was "
            "committed",
            lambda: self._commit(token),
            patience=max(left, self._patience),
        )

    async def abort(self, transactional_id: str, incarnation: Incarnation) -> TransactionOutcome:
        """Abort the open transaction of a producer, unless it has ended, and return how it ended.

        For a producer that is not the newest, and for any before Kafka 3.0, the result only means
        that it can write no more: its marker shows whether it had committed before.
        """

        async def call() -> TransactionOutcome:
            if await self._calls.end(transactional_id, incarnation, commit=False):
                return TransactionOutcome.ABORTED
            description = await self._calls.describe(transactional_id)
            if description is None:
                return TransactionOutcome.ABORTED
            return outcome_without_marker(incarnation, description)

        return await self._retried(f"a transaction of {transactional_id} cannot be aborted", call)

    async def store_offsets(
        self, transactional_id: str, incarnation: Incarnation, stored: GroupOffsets
    ) -> None:
        """Set offsets of a group in an open transaction; the commit makes them valid.

        A transaction that is not open any more is no error here: `end` returns how it ended.
        Call it before `end`, never after, where it would begin a new transaction.

        Raises:
            MemberRefusedError: If the group may have another member for a partition by now.
        """

        async def call() -> None:
            if await self._calls.add_group(transactional_id, incarnation, stored.group):
                await self._calls.set_offsets(transactional_id, incarnation, stored)

        what = f"the offsets of {stored.group} cannot be stored in a transaction"
        await self._retried(what, call)

    async def stored_positions(self, group: str) -> Mapping[Partition, Cursor]:
        """Return the positions that a group has committed; final after `begin`, as for `marked`."""
        doing = f"the offsets of the group {group} cannot be read"
        return await self._retried(doing, lambda: self._calls.positions(group))

    async def end(
        self, transactional_id: str, incarnation: Incarnation, *, patience: float
    ) -> TransactionOutcome:
        """Commit an open transaction, and return how it ended.

        Only the process that began it calls this: no other one writes with its epoch, so that a
        commit whose answer was lost is repeated without danger.
        """

        async def call() -> TransactionOutcome:
            if await self._calls.end(transactional_id, incarnation, commit=True):
                return TransactionOutcome.COMMITTED
            description = await self._calls.describe(transactional_id)
            if description is None:
                return TransactionOutcome.FENCED
            return outcome_without_marker(incarnation, description)

        return await self._retried(
            f"it is not known whether a transaction of {transactional_id} was committed",
            call,
            patience=max(patience, self._patience),
        )

    async def marked(self, marker_group: str, topics: Sequence[str] = ()) -> int | None:
        """Return the newest batch that is marked as committed; None for none. See `newest_mark`."""
        return (await self.newest_mark(marker_group, topics)).newest

    async def newest_mark(self, marker_group: str, topics: Sequence[str] = ()) -> Markers:
        """Return the newest batch that is marked as committed, and what its marker tells of it.

        The result is final if no other process can commit, so after `begin`. The call waits for a
        transaction that is open or being ended, and has its marker in one of these topics, those of
        a stored token, or in any topic with a committed marker. It raises ServiceError where a
        transaction stays open; `describe` reports that without waiting.
        """

        async def call() -> Markers:
            found = [await self._calls.markers(marker_group, topics)] if topics else []
            found.append(await self._calls.markers(marker_group, None))
            if any(markers.pending for markers in found):
                raise NotYetError(f"a transaction with a marker in {marker_group} is still open")
            return max(
                found, key=lambda one: (-1 if one.newest is None else one.newest, one.content)
            )

        return await self._retried(f"the marker in {marker_group} cannot be read", call)

    async def markers(self, group: str, topics: Sequence[str], *, stable: bool) -> Markers:
        """Return the markers in some topics now; see `TransactionCalls.markers`."""
        doing = f"the marker in {group} cannot be read"
        return await self._retried(doing, lambda: self._calls.markers(group, topics, stable=stable))

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; see `partition_counts`."""
        return (await self.partition_counts([topic]))[topic]

    async def partition_counts(
        self, topics: Collection[str], others: Collection[str] = ()
    ) -> dict[str, int]:
        """Return how many partitions topics have, in the order of their names.

        The others are left out where they do not exist, or may not be described; the first have to
        exist.
        """
        clock = asyncio.get_running_loop().time
        missing_at = clock() + KAFKA_INTERVALS.current.topic_missing_after

        async def count() -> dict[str, int]:
            try:
                return await self._calls.partition_counts(topics, others)
            except UnknownTopicOrPartitionError as error:
                if clock() < missing_at:  # a broker that has just started may not know it yet
                    raise
                raise ServiceError(
                    f"there is no topic {error.args[0]}: create it before it is written to, or "
                    f"check its name and the cluster"
                ) from error

        named = ", ".join(sorted(topics)) or "the topics"
        return await self._retried(f"the partitions of {named} cannot be counted", count)

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """Return the description of a transactional id; None before Kafka 3.0."""
        doing = f"the transactions of {transactional_id} cannot be described"
        return await self._retried(doing, lambda: self._calls.describe(transactional_id))

    async def _commit(self, token: CommitToken) -> TransactionOutcome:
        """Make one attempt, which first checks the result of the attempt before."""
        calls = self._calls
        markers = await calls.markers(token.marker_group, token.topics)
        if _has(markers, token):
            return TransactionOutcome.COMMITTED
        if markers.pending and await calls.end(
            token.transactional_id, token.incarnation, commit=True
        ):
            return TransactionOutcome.COMMITTED
        description = await calls.describe(token.transactional_id)
        if not markers.pending:
            return _outcome(token, description)
        if (
            description is None
            or description.state is not TransactionState.ONGOING
            or description.incarnation == token.incarnation
        ):
            raise NotYetError("the transaction is still being ended")
        # The pending marker is that of a newer transaction, and hides the one before it.
        markers = await calls.markers(token.marker_group, token.topics, stable=False)
        return TransactionOutcome.COMMITTED if _has(markers, token) else TransactionOutcome.FENCED

    async def _retried(
        self, doing: str, call: Callable[[], Awaitable[_T]], *, patience: float | None = None
    ) -> _T:
        return await with_retries(doing, call, self._jitter, patience=patience or self._patience)


def _has(markers: Markers, token: CommitToken) -> bool:
    return markers.newest is not None and markers.newest >= token.batch_id


def _outcome(token: CommitToken, description: TransactionDescription | None) -> TransactionOutcome:
    """Return how a transaction without a marker ended, by the clock before Kafka 3.0."""
    if description is not None:
        return outcome_without_marker(token.incarnation, description)
    return (
        TransactionOutcome.EXPIRED
        if token.expires_at <= datetime.now(UTC)
        else TransactionOutcome.FENCED
    )


async def transaction_status(
    transactions: Transactions, token: CommitToken, *, recorded: bool
) -> TransactionStatus:
    """Read the status of a transaction, without changing it or waiting for its end."""
    description = await transactions.describe(token.transactional_id)
    markers = await transactions.markers(token.marker_group, token.topics, stable=True)
    pending = markers.pending
    if pending:  # it hides the marker before it
        markers = await transactions.markers(token.marker_group, token.topics, stable=False)
    return TransactionStatus(
        token=token,
        recorded=recorded,
        description=description,
        marked=markers.newest,
        pending=pending,
    )
