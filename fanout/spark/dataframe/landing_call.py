"""A planner's call to the driver, whose landers land for it, and the messages of both."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, final

import msgspec

from fanout.core.cancellation import in_thread
from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import SetupError
from fanout.landers.channel import ChannelClosedError
from fanout.landers.messages import Failed, MessageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.landers.channel import Channel


class Begin(msgspec.Struct, frozen=True, tag="begin", forbid_unknown_fields=True):
    """The planner wants a source landed for as long as it is connected."""

    landing: str  # the name of the landing
    available_now: bool  # whether it ends with what is there now


class Next(msgspec.Struct, frozen=True, tag="next", forbid_unknown_fields=True):
    """The planner wants the next entry; until then nothing more is landed."""


class LandingOpened(msgspec.Struct, frozen=True, tag="opened", forbid_unknown_fields=True):
    """The landing is there."""


class Entry(msgspec.Struct, frozen=True, tag="entry", forbid_unknown_fields=True):
    """An entry was landed."""

    number: int
    bytes: int  # of its files
    records: int  # that this run has landed
    # Seconds that the split is behind which is most behind; None where that is not known.
    lag: float | None


class Ended(msgspec.Struct, frozen=True, tag="ended", forbid_unknown_fields=True):
    """All is landed that was to be landed."""


FromPlanner: TypeAlias = Begin | Next
FromDriver: TypeAlias = LandingOpened | Entry | Ended | Failed

_FROM_PLANNER: Final[msgspec.json.Decoder[FromPlanner]] = msgspec.json.Decoder(FromPlanner)
_FROM_DRIVER: Final[msgspec.json.Decoder[FromDriver]] = msgspec.json.Decoder(FromDriver)


@final
@dataclass(frozen=True, slots=True)
class DriverEndpoint:
    """How a planner, which runs on the driver's machine, reaches the driver.

    Spark sends it to workers too. So it names the file of the secret, which only the driver's user
    can read, and only on that machine.
    """

    address: tuple[str, int]
    secret_file: str  # the path of what both sides prove that they know
    landing: str  # the name of the landing

    def read_secret(self) -> bytes:
        """Return the secret. It blocks.

        Raises:
            SetupError: The driver's Python has ended, or this is another user or machine.
        """
        try:
            return Path(self.secret_file).read_bytes()
        except OSError as error:
            raise _driver_has_gone() from error


def from_planner(message: bytes) -> FromPlanner:
    """Read a message of a planner, or raise MessageError."""
    try:
        return _FROM_PLANNER.decode(message)
    except MALFORMED_JSON as error:
        raise MessageError("a planner sent something that is no message") from error


@asynccontextmanager
async def land_in_driver(
    endpoint: DriverEndpoint, *, available_now: bool
) -> AsyncIterator[AsyncIterator[Entry]]:
    """Have the driver land while the block runs; each step lets it land the next entry.

    Raises:
        SetupError: The driver's Python has ended.
        FanOutError: The error that has ended the landing, there or at its start.

    Cancellation: the driver ends the landing.
    """
    # websockets is not for workers, which read.
    from fanout.landers.control_client import connect  # noqa: PLC0415

    async with AsyncExitStack() as resources:
        secret = await in_thread(endpoint.read_secret)
        try:
            channel = await resources.enter_async_context(connect(endpoint.address, secret))
        except SetupError as error:
            raise _driver_has_gone() from error
        await _ask(channel, Begin(endpoint.landing, available_now))
        yield _entries(channel)


async def _entries(channel: Channel) -> AsyncIterator[Entry]:
    while isinstance(answer := await _ask(channel, Next()), Entry):
        yield answer


async def _ask(channel: Channel, message: FromPlanner) -> FromDriver:
    try:
        await channel.send(msgspec.json.encode(message))
        answer = _FROM_DRIVER.decode(await channel.receive())
    except ChannelClosedError as error:
        raise _driver_has_gone() from error
    if isinstance(answer, Failed):
        raise answer.failure()
    return answer


def _driver_has_gone() -> SetupError:
    return SetupError(
        "the Python process that has called read_stream cannot be reached, and its landers have "
        "ended: call read_stream again, and start the query on the same checkpoint"
    )
