"""The options that every source has."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.core.backoff import Backoff, Pacing
from fanout.core.option_checks import at_least_one, check_seconds, whole
from fanout.core.sentence import Option
from fanout.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of every source. All times are in seconds.

    Args:
        backoff: How the waits between attempts grow.
        max_retries: Failures in a row without progress after which a split fails; None for no
            limit.
        discovery_interval: The time between two listings of the splits.
        max_bytes_in_flight: The bytes of all splits together that may wait for the consumer.
    """

    backoff: Backoff
    max_retries: int | None = None
    discovery_interval: float | None
    max_bytes_in_flight: int = 256 * 1024 * 1024

    def check_reading(self) -> None:
        """Check the options of this class."""
        if not isinstance(self.backoff, Backoff):
            raise OptionError(Option("backoff", self.backoff), " must be a fanout.Backoff")
        retries = self.max_retries
        if retries is not None and whole("max_retries", retries, or_none=True) < 0:
            raise OptionError(Option("max_retries", retries), " must be 0 or more, or None")
        if self.discovery_interval is not None:
            check_seconds("discovery_interval", self.discovery_interval)
        at_least_one("max_bytes_in_flight", self.max_bytes_in_flight)

    def make_pacing(
        self,
        *,
        floor: float,
        slow: float,
        spacing: float = 0.0,
        handover: float = 0.0,
        subscribe_timeout: float,
        silence_timeout: float,
    ) -> Pacing:
        """Return the pacing of a service with these options."""
        return Pacing(
            floor=floor,
            spacing=spacing,
            handover=handover,
            slow=slow,
            subscribe_timeout=subscribe_timeout,
            silence_timeout=silence_timeout,
            discovery_interval=self.discovery_interval,
            backoff=self.backoff,
            max_retries=self.max_retries,
            max_bytes_in_flight=self.max_bytes_in_flight,
        )
