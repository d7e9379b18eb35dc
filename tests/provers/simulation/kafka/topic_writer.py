"""Write the records of an ordinary topic, which is no shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tests.provers.simulation.kafka.log_builder import BatchContent
from tests.provers.simulation.kafka.partition_log import KafkaRecord
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import millis
from tests.support.kafka.record_batches import BatchRow

if TYPE_CHECKING:
    from random import Random

    from tests.provers.simulation.kafka.log_builder import LogBuilder

__all__ = ("HELD", "TopicWriter")

_PRODUCERS: Final = (101, 102, 103)
HELD: Final = 104
"""The producer whose transaction stays open for long."""


@final
class TopicWriter:
    """Write records one after the other, from which compaction may have taken some.

    Args:
        sheet: Where they are written.
        random: Where chance comes from.
        transactions: Whether there are any.
        large: Whether there are large records.
    """

    def __init__(
        self, builder: LogBuilder, random: Random, *, transactions: bool, large: bool
    ) -> None:
        self._builder = builder
        self._random = random
        self._has_transactions = transactions
        self._large = large

    def write(self, at: float) -> None:
        """Write something at a moment."""
        if not (self._has_transactions and happens(self._random, 0.6)):
            self._append(at, None)
            return
        producer = self._random.choice(_PRODUCERS)
        if producer in self._builder.open and happens(self._random, 0.5):
            self._builder.finish(at, producer)
        else:
            self._append(at, producer)

    def hold(self, at: float) -> None:
        """Write something into a transaction that stays open."""
        if self._has_transactions:
            self._append(at, HELD)

    def let_go(self, at: float) -> None:
        """End that transaction."""
        self._builder.finish(at, HELD)

    def settle(self, at: float) -> None:
        """End all transactions."""
        for producer in self._builder.open:
            self._builder.finish(at, producer)

    def _append(self, at: float, producer: int | None) -> None:
        random = self._random
        if happens(random, 0.1):
            self._builder.skip(random.randint(1, 5))
        count = random.choice((1, 1, 2, 3, 8))
        rows = [self._row(number, at) for number in range(count)]
        compacted = happens(random, 0.15)
        left = [row for row in rows if not (compacted and happens(random, 0.6))]
        self._builder.append(
            at, producer, BatchContent(left, [KafkaRecord(*row) for row in left], count)
        )

    def _row(self, number: int, at: float) -> BatchRow:
        random = self._random
        size = random.choice((0, 1, 10, 100))
        if self._large and happens(random, 0.2):
            size = random.randrange(300_000)
        return BatchRow(
            number,
            millis(at),
            random.choice((None, b"", random.randbytes(3))),
            None if happens(random, 0.05) else random.randbytes(size),
            (("h", random.choice((None, b"x"))),) if happens(random, 0.1) else (),
        )
