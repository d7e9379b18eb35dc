"""Make the rows of a shuffle writer visible to readers: at once, or by a transaction."""

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

# Seconds that an abort waits for rows that are under way.
_FLUSH_SECONDS: Final = 5.0


class CommitMode(Protocol):
    """Write rows, and make them visible to readers."""

    @property
    def pending(self) -> bool:
        """Whether rows were written that readers see only after a commit."""

    async def write(self, rows: pa.RecordBatch) -> None:
        """Write rows; see `KafkaWriter.write`."""

    async def commit(self) -> None:
        """Return when all written rows are durable and visible."""

    async def abort(self) -> None:
        """Drop the rows that are not visible yet."""


@final
class AtLeastOnceMode:
    """Make rows visible as soon as all in-sync replicas have them."""

    pending = False

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer

    async def write(self, rows: pa.RecordBatch) -> None:
        """Write rows."""
        await self._writer.write(rows)

    async def commit(self) -> None:
        """Wait until brokers have confirmed all rows."""
        await self._writer.flush()

    async def abort(self) -> None:
        """Do nothing: all rows are visible already."""


@final
class ExactlyOnceMode:
    """Make all rows between two commits visible at once, by a transaction.

    The offset of the marker group marks the last commit. The numbers of commits increase from
    `number` on.
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
        """Write rows; the first one begins a transaction.

        A commit that was cancelled is finished first, because no row may follow the marker in its
        transaction.
        """
        if self._marked_token is not None:
            await self.commit()
        if self._expires_at is None:
            self._expires_at = datetime.now(UTC) + timedelta(seconds=self._timeout)
        await self._writer.write(rows)

    async def commit(self) -> None:
        """Commit the rows that were written since the last commit.

        Where it is cancelled, the rows may be committed; another call finishes the commit.

        Raises:
            BatchNotWrittenError: If brokers aborted the transaction, because it took too long.
            FencedError: If a newer writer has taken over.
            FanOutError: As `KafkaWriter.flush` and `Transactions.commit`.
        """
        if self._expires_at is None:
            return
        if self._marked_token is None:
            token = await self._token(self._expires_at)
            await self._transactions.mark(token)
            # Not before: a second marker would begin another transaction.
            self._marked_token = token
        match await self._transactions.commit(self._marked_token):
            case TransactionOutcome.COMMITTED:
                self._number += 1
                self._marked_token = self._expires_at = None
                self._writer.next_transaction()
            case TransactionOutcome.FENCED:
                raise FencedError(
                    f"a newer writer has taken over {self._joined.transactional_id}; the rows "
                    f"since the last commit were aborted"
                )
            case outcome:
                raise BatchNotWrittenError(
                    f"the transaction was {outcome.value} before it was committed, so the rows "
                    f"since the last commit are not in the topic: commit within "
                    f"{self._timeout:g} s, or raise transaction_timeout"
                )

    async def abort(self) -> None:
        """Abort the open transaction, so that readers do not wait for it."""
        if self._expires_at is None:
            return
        # Rows that are under way would begin another transaction if they arrived after the abort.
        with suppress(TimeoutError, FanOutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
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
