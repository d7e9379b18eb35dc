"""How a service names the records that it lends, in memory and where they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fanout.core.lending.seam import P

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from fanout.core.lending.dedup import Dedup
    from fanout.core.lending.seam import PieceSet


class Naming(Protocol[P]):
    """How a service names records."""

    @property
    def owners(self) -> str:
        """What `owner` returns, in plural."""

    @property
    def row_column(self) -> str:
        """The column that tells the rows of a group apart."""

    @property
    def unreadable(self) -> str:
        """Why a member cannot read a record."""

    def new_set(self) -> PieceSet[P]:
        """Return an empty set."""

    def count(self, pieces: Iterable[P]) -> int:
        """Return the number of records."""

    def describe(self, pieces: Sequence[P]) -> tuple[str, ...]:
        """Return a name for each piece, for messages."""

    def owner(self, piece: P) -> Hashable:
        """Return what the service's confirmation of a piece is about."""

    def write(self, pieces: Iterable[P]) -> str:
        """Return pieces as JSON; raise ServiceError where there are too many."""

    def read(self, text: str) -> list[P]:
        """Read pieces back, none from an empty text; PositionError if they do not fit."""

    def forget_gone(self, dedup: Dedup[P]) -> None:
        """Forget unconfirmed records that cannot come again."""

    async def forget_replaced(self, dedup: Dedup[P]) -> None:
        """Forget records whose names are now those of others."""
