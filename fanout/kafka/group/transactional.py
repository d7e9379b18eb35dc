"""What a member has delivered, as offsets in the transaction of a writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.core.membership import lost_splits
from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.membership import SharedSplits
    from fanout.core.positions import Position
    from fanout.kafka.group.calls import GroupOffsets
    from fanout.kafka.group.member import ConsumerMember


@final
@dataclass(slots=True)
class MemberPositions:
    """Positions that one member has delivered, for one commit."""

    _shared: SharedSplits
    _member: ConsumerMember
    _positions: Mapping[str, Position]

    async def claim(self) -> GroupOffsets:
        """Claim what is not stored yet, when no other commit of this member is under way.

        Raises:
            SplitLostError: If a partition has left before all of it that was delivered was stored.
        """
        self._shared.claim(self._positions)
        await self._member.commits_nothing()
        moved = self._shared.claim(self._positions)  # one may have left meanwhile
        cursors = {id_: at for id_, at in moved.items() if isinstance(at, Cursor)}
        return self._member.claim({Partition.of(id_): at for id_, at in cursors.items()})

    async def refused(self, claim: GroupOffsets) -> None:
        """Learn from the coordinator who this member is now that it refuses.

        Raises:
            SplitLostError: If it says nothing else within a session.
        """
        if not await self._member.follows(claim.member):
            raise lost_splits({str(each) for each in claim.offsets}, claim.group, aborted=True)

    def stored(self, claim: GroupOffsets) -> None:
        """Take in that a transaction with a claim is committed."""
        self._member.stored(claim.positions)
        self._shared.settle(self._positions)

    async def aborted(self) -> None:
        """Have delivered again what this member still has."""
        await self._shared.deliver_again()
