"""The faults of a plan, each waiting for its moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from enum import Enum, StrEnum

__all__ = ("ArmedFault", "ArmedFaults")


class _FaultTraits(Protocol):
    @property
    def site(self) -> Enum:
        """The part of the system that a fault strikes."""


class ArmedFault(Protocol):
    """A fault, from a moment on; see `Fault`."""

    @property
    def kind(self) -> StrEnum:
        """The kind of the fault."""

    @property
    def at(self) -> float:
        """From when on, in virtual seconds."""

    @property
    def shard(self) -> str | None:
        """Which split it strikes; None for any."""

    @property
    def lasts(self) -> float:
        """For how many seconds it strikes every time; 0 to strike once."""

    @property
    def code(self) -> str:
        """The error of the service that it is, where it is one."""

    @property
    def traits(self) -> _FaultTraits:
        """The traits of its kind."""


F = TypeVar("F", bound=ArmedFault)


@final
class ArmedFaults(Generic[F]):
    """Hand each fault out when it strikes, and count what has struck.

    `stopped` is true once everything is repaired.

    Args:
        faults: The faults, by their moments.
        note: Receives each fault that strikes.
    """

    def __init__(self, faults: Iterable[F], note: Callable[[str], None]) -> None:
        self.struck: Counter[str] = Counter()
        self.stopped = False
        self.note = note
        self._waiting: defaultdict[Enum, list[F]] = defaultdict(list)
        for fault in faults:
            self._waiting[fault.traits.site].append(fault)

    def of(self, site: Enum) -> list[F]:
        """Return the faults of a site that have not struck, by their moments."""
        return self._waiting[site]

    def strike(
        self,
        site: Enum,
        now: float,
        *,
        shard: str | None = None,
        kinds: Collection[StrEnum] | None = None,
        but: Collection[str] = (),
    ) -> F | None:
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

    def strikes(self, fault: F) -> None:
        """Count a fault that strikes now."""
        self.struck[fault.kind] += 1
        self.note(f"fault {fault}")

    def strikes_again(self, kind: StrEnum) -> None:
        """Count that what is damaged for good was sent."""
        self.struck[kind] += 1
        self.note(f"again {kind}")

    def stop(self, *but: F) -> None:
        """Let nothing go wrong any more.

        Args:
            *but: What goes on all the same.
        """
        self.stopped = True
        self._waiting.clear()
        for fault in but:
            self._waiting[fault.traits.site].append(fault)
