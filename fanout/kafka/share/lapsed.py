"""The records of a member that were delivered, and whose locks ran out before anything was said."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.share.loan import Loan
    from fanout.kafka.share.record_sets import Piece

__all__ = ("Lapsed",)

# Polls. Whoever acknowledges some records at all needs few; for the others none are kept for ever.
_MOST: Final = 1000


@final
class Lapsed:
    """Remember which they are, for whoever acknowledges them nevertheless."""

    def __init__(self) -> None:
        self._loans: deque[Loan] = deque(maxlen=_MOST)

    def add(self, loan: Loan) -> None:
        """Note a poll with such records."""
        loan.forget_records()
        self._loans.append(loan)

    def look(self, until: int) -> list[Piece]:
        """Return the records up to a number."""
        return [piece for loan in self._loans for piece in loan.pieces(loan.lapsed(until))]

    def take(self, until: int) -> list[Piece]:
        """Return the records up to a number, and forget them."""
        pieces = [piece for loan in self._loans for piece in loan.tell(loan.lapsed(until))]
        while self._loans and not len(self._loans[0].lapsed(2**62)):
            self._loans.popleft()
        return pieces

    def find(self, numbers: Sequence[int]) -> list[Piece]:
        """Return the records with these numbers, and forget them."""
        return [
            piece
            for loan in self._loans
            for piece in loan.tell(loan.numbered(numbers, lapsed=True))
        ]
