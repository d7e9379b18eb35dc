"""The faults of a plan, each waiting for its moment."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, final

from fanout.testing.simulation.faults.faults import CATALOGUE, Fault, Kind, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ("Armed",)


@final
class Armed:
    """Hand each fault out when it strikes, and count what has struck.

    `stopped` tells whether everything is repaired.

    Args:
        faults: The faults, by their moments.
        note: Told each fault that strikes.
    """

    def __init__(self, faults: Iterable[Fault], note: Callable[[str], None]) -> None:
        self.struck: Counter[str] = Counter()
        self.stopped = False
        self.note = note
        self._waiting: defaultdict[Site, list[Fault]] = defaultdict(list)
        for fault in faults:
            self._waiting[fault.traits.site].append(fault)

    def of(self, site: Site) -> list[Fault]:
        """Return the faults of a site that have not struck, by their moments."""
        return self._waiting[site]

    def strike(
        self,
        site: Site,
        now: float,
        *,
        shard: str | None = None,
        kinds: Collection[Kind] | None = None,
        but: Collection[str] = (),
    ) -> Fault | None:
        """Take the fault that strikes here and now; None where nothing goes wrong.

        Args:
            site: What may go wrong.
            now: The virtual seconds.
            shard: Of which shard.
            kinds: What it may be; None for anything.
            but: The errors of the service that it may not be.
        """
        waiting = self._waiting[site]
        for place, fault in enumerate(waiting):
            if fault.at > now:
                return None
            fits = (
                fault.shard in {None, shard}
                and (kinds is None or fault.kind in kinds)
                and fault.code not in but
            )
            if not fits:
                continue
            if fault.lasts == 0 or now > fault.at + fault.lasts:
                del waiting[place]
            if fault.lasts == 0 or now <= fault.at + fault.lasts:
                self.strikes(fault)
                return fault
            return self.strike(site, now, shard=shard, kinds=kinds, but=but)
        return None

    def strikes(self, fault: Fault) -> None:
        """Count a fault that strikes now."""
        self.struck[fault.kind] += 1
        self.note(f"fault {fault}")

    def strikes_again(self, kind: Kind) -> None:
        """Count that what is damaged for good was sent."""
        self.struck[kind] += 1
        self.note(f"again {kind}")

    def stop(self, broken: str | None, by: Kind = Kind.REFUSED) -> None:
        """Let nothing go wrong any more, except that one shard cannot be read for ever.

        Args:
            broken: The shard; None where everything is well.
            by: What goes wrong with it each time.
        """
        self.stopped = True
        self._waiting.clear()
        if broken is not None:
            site, code = CATALOGUE[by].site, "InternalFailureException"
            for_ever = Fault(kind=by, at=0, shard=broken, seconds=60, lasts=math.inf, code=code)
            self._waiting[site].append(for_ever)
