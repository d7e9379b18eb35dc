"""When readers see what a writer of a shuffle writes: as it comes, or once it is committed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, final

from fanout.errors import BatchNotWrittenError, FanOutError, FencedError
from fanout.kafka.transactions.commit_token import CommitToken, numbers_of
from fanout.kafka.transactions.outcome import TransactionOutcome

if TYPE_CHECKING:
    import pyarrow as pa

    from fanout.kafka.transactions.transactions import Transactions
    from fanout.kafka.writing.producer_id import Transactional
    from fanout.kafka.writing.writer import KafkaWriter

__all__ = ("AtLeastOnceMode", "CommitMode", "ExactlyOnceMode")

# Seconds for which somebody who leaves waits for what is on its way.
_SETTLED: Final = 5.0


class CommitMode(Protocol):
    """Write rows, and let them be seen."""

    @property
    def pending(self) -> bool:
        """Whether something was written that nobody sees before it is committed."""

    async def write(self, rows: pa.RecordBatch) -> None:
        """Write rows; see `KafkaWriter.write`."""

    async def commit(self) -> None:
        """Wait until everything is durable and seen."""

    async def abort(self) -> None:
        """Drop what nobody sees so far."""


@final
class AtLeastOnceMode:
    """Let rows be seen as soon as all in-sync replicas have them.

    Args:
        writer: Writes.
    """

    pending = False

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer

    async def write(self, rows: pa.RecordBatch) -> None:
        """Write rows."""
        await self._writer.write(rows)

    async def commit(self) -> None:
        """Wait until everything is confirmed."""
        await self._writer.flush()

    async def abort(self) -> None:
        """Leave everything as it is."""


@final
class ExactlyOnceMode:
    """Let rows be seen together, in one transaction from commit to commit.

    Args:
        writer: Writes, joined to the transactions.
        transactions: Ends them.
        joined: Whose they are.
        marker_group: Where they are marked.
        timeout: Seconds after which brokers abort one.
        number: Of the first commit; each has a higher one than all before it.
    """

    def __init__(
        self,
        writer: KafkaWriter,
        transactions: Transactions,
        joined: Transactional,
        *,
        marker_group: str,
        timeout: float,
        number: int,
    ) -> None:
        self._writer = writer
        self._transactions = transactions
        self._joined = joined
        self._marker_group = marker_group
        self._timeout = timeout
        self._number = number
        self._expires_at: datetime | None = None
        self._marked_token: CommitToken | None = None

    @property
    def pending(self) -> bool:
        """Whether a transaction is open."""
        return self._expires_at is not None

    async def write(self, rows: pa.RecordBatch) -> None:
        """Write rows, in a transaction that begins with the first ones.

        Where a call of `commit` was cancelled it is finished first: behind the marker nothing
        becomes part of that transaction.

        Raises:
            FanOutError: As `KafkaWriter.write` and `commit`.
        """
        if self._marked_token is not None:
            await self.commit()
        if self._expires_at is None:
            self._expires_at = datetime.now(UTC) + timedelta(seconds=self._timeout)
        await self._writer.write(rows)

    async def commit(self) -> None:
        """Commit what was written since the last time.

        Raises:
            BatchNotWrittenError: Brokers have aborted it, because it took too long.
            FencedError: A newer writer has taken over.
            FanOutError: As `KafkaWriter.flush` and `Transactions.commit`.

        Cancellation: it may have been committed; to call it again finds that out.
        """
        if self._expires_at is None:
            return
        if self._marked_token is None:
            token = await self._token(self._expires_at)
            await self._transactions.mark(token)
            # From here on it must not be marked any more: it would begin another transaction.
            self._marked_token = token
        match await self._transactions.commit(self._marked_token):
            case TransactionOutcome.COMMITTED:
                self._number += 1
                self._marked_token = self._expires_at = None
                self._writer.next_transaction()
            case TransactionOutcome.FENCED:
                raise FencedError(
                    f"a newer writer has taken over {self._joined.transactional_id}; what was "
                    f"written since the last commit was aborted"
                )
            case outcome:
                raise BatchNotWrittenError(
                    f"the transaction was {outcome.value} before it was committed, so what was "
                    f"written since the last commit is not there: commit within {self._timeout:g} "
                    f"s, or raise transaction_timeout"
                )

    async def abort(self) -> None:
        """Abort what is open, so that readers do not wait for it."""
        if self._expires_at is None:
            return
        # What is on its way would open another transaction if it arrived behind the abort.
        with suppress(TimeoutError, FanOutError):
            async with asyncio.timeout(_SETTLED):
                await self._writer.flush()
        await self._transactions.abort(self._joined.transactional_id, self._joined.incarnation)

    async def _token(self, expires_at: datetime) -> CommitToken:
        written = await self._writer.flush()
        return CommitToken(
            transactional_id=self._joined.transactional_id,
            incarnation=self._joined.incarnation,
            marker_group=self._marker_group,
            batch_id=self._number,
            partitions=numbers_of(written.partitions),
            created_at=datetime.now(UTC),
            expires_at=expires_at,
        )
