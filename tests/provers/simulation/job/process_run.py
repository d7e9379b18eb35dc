"""One run of the process that reads a simulated stream, as the service knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempts

if TYPE_CHECKING:
    from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents

__all__ = ("ProcessRun",)


@final
@dataclass(slots=True)
class ProcessRun:
    """One run of the reader's process.

    Args:
        number: Its number, from 1.
        held: The events that it holds.
        dead: Whether the process has died; what its remains do has no effect.
        hindered: Whether it has met an outage, a throttle or expired credentials.
        credentials: Which credentials sign its calls, from 0; the newest are the highest.
        refused_times: How often a time was refused that is in the future of the service's clock.
        opened: Whether its stream has been opened.
        settled: Whether it has listed, subscribed and read: what is refused from now on has worked.
        passed_over: The newest number of each shard that had expired when the process asked for the
            oldest record.
        attempts: Its subscribe calls.
        refusals: The errors that refused its other calls.
        hung: How many of those were not answered for long.
        calling: How many of those are under way.
        called_at: When the latest of them ended.
        listed_at: When it has asked for the shards, in seconds in which the loop was not blocked.
    """

    number: int
    held: HeldEvents
    dead: bool = False
    hindered: bool = False
    credentials: int = 0
    refused_times: int = 0
    opened: bool = False
    settled: bool = False
    passed_over: dict[str, int] = field(default_factory=dict)
    attempts: SubscribeAttempts = field(default_factory=SubscribeAttempts)
    refusals: list[Exception] = field(default_factory=list)
    hung: int = 0
    calling: int = 0
    called_at: float = 0.0
    listed_at: float = 0.0
