"""What a member has delivered, as offsets in the transaction of a writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.core.membership import aborted
from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.membership import SharedSplits
    from fanout.core.positions import Position
    from fanout.kafka.group.calls import Claim
    from fanout.kafka.group.member import ConsumerMember


@final
class MemberPositions:
    """Positions that one member has delivered, for one commit."""

    def __init__(
        self, shared: SharedSplits, member: ConsumerMember, positions: Mapping[str, Position]
    ) -> None:
        self._shared = shared
        self._member = member
        self._positions = positions

    async def claim(self) -> Claim:
        """Claim what is not stored yet, when no other commit of this member is under way.

        Raises:
            SplitLostError: If a partition has left before all of it that was delivered was stored.
        """
        self._shared.claim(self._positions)
        await self._member.commits_nothing()
        moved = self._shared.claim(self._positions)  # one may have left meanwhile
        return self._member.claim(
            {Partition.of(id_): at for id_, at in moved.items() if isinstance(at, Cursor)}
        )

    async def refused(self, claim: Claim) -> None:
        """Learn from the coordinator who this member is now that it refuses.

        Raises:
            SplitLostError: If it says nothing else within a session.
        """
        if not await self._member.follows(claim.member):
            raise aborted({str(partition) for partition in claim.positions}, claim.group)

    def stored(self, claim: Claim) -> None:
        """Take in that a transaction with a claim is committed."""
        self._member.stored(claim.positions)
        self._shared.settle(self._positions)

    async def aborted(self) -> None:
        """Have delivered again what this member still has."""
        await self._shared.deliver_again()
