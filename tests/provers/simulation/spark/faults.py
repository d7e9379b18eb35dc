"""The faults that strike a driver, as values that print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

__all__ = (
    "DiskRefusal",
    "DriverFault",
    "DriverKill",
    "FileDamage",
    "HandlerFails",
    "LateList",
    "LostAnswer",
    "PowerLoss",
    "SlowOperation",
)


@final
@dataclass(frozen=True, slots=True)
class DriverKill:
    """SIGKILL for the driver's Python; its JVM lives on for a while.

    Args:
        effect: Before which operation that changes something, counted from 1.
        linger: Seconds until the JVM has gone too.
    """

    effect: int
    linger: float = 2.0


@final
@dataclass(frozen=True, slots=True)
class PowerLoss:
    """The machine stops; what was not fsynced is gone, or is not, as chance has it.

    Args:
        effect: Before which operation that changes something, counted from 1.
        forgotten: How many of its last log files Spark, which does not fsync, has lost.
    """

    effect: int
    forgotten: int = 0


@final
@dataclass(frozen=True, slots=True)
class DiskRefusal:
    """The disk or the store refuses an operation.

    Args:
        operation: Which one, counted from 1; those that only look count too.
        code: The error number: EIO or ENOSPC.
        times: How many operations in a row.
    """

    operation: int
    code: int
    times: int = 1


@final
@dataclass(frozen=True, slots=True)
class SlowOperation:
    """An operation takes long; in a store it may take effect long after it was asked for.

    Args:
        operation: Which one, counted from 1.
        seconds: How long.
    """

    operation: int
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class LostAnswer:
    """A remote store does what it was asked to, and the driver gets an error.

    Args:
        operation: Which one, counted from 1.
    """

    operation: int


@final
@dataclass(frozen=True, slots=True)
class LateList:
    """A list misses an entry that is there, or shows one that has gone.

    It is not planned: it follows from how far the lists of a plan lag.
    """


@final
@dataclass(frozen=True, slots=True)
class HandlerFails:
    """The user's handler raises.

    Args:
        call: Which call of it in this run, counted from 1.
        after: Whether it has written its rows before.
    """

    call: int
    after: bool


@final
@dataclass(frozen=True, slots=True)
class FileDamage:
    """Between two runs a file of the checkpoint that was durable is cut off, or goes.

    Args:
        kind: A segment, an entry or the origin.
        keep: The share of its bytes that stays; None where the file goes.
    """

    kind: str
    keep: float | None


DriverFault: TypeAlias = (
    DriverKill | PowerLoss | DiskRefusal | SlowOperation | LostAnswer | LateList | HandlerFails
)
