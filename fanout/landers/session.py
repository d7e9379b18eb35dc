"""The sessions of landers, as the coordinator sees them: what they hold, and what they leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.error_text import text_of
from fanout.core.lifecycle_log import LanderName
from fanout.core.statistics import LanderStatistics
from fanout.landers.channel import ChannelClosedError
from fanout.landers.messages import Beat, MessageError, encode, from_lander
from fanout.landing.segments.bad_records import STAGED
from fanout.landing.segments.segments import SEGMENTS, session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fanout.errors import FanOutError
    from fanout.landers.channel import Channel
    from fanout.landers.messages import FromCoordinator, Hello, Landed
    from fanout.landing.storage.storage import Storage

SILENCE: Final = 7.0
"""Seconds without a message of a lander after which its session is over."""

_BEAT_SECONDS: Final = 1.0

TakeIn: TypeAlias = "Callable[[LanderSession, object], None]"
"""Takes a message of a session in; MessageError ends the session."""


TakenIn: TypeAlias = "tuple[LanderSession, Landed]"
"""A segment that is durable, and the session that has landed it."""


@final
class LanderSession:
    """The splits of a lander, what it has told, and the messages to it."""

    def __init__(self, hello: Hello, epoch: int, channel: Channel) -> None:
        self.lander = hello.lander
        self.attempt = hello.attempt
        self.host = hello.host
        self.pid = hello.pid
        self.epoch = epoch
        self.splits: set[str] = set()
        self.releasing: set[str] = set()
        self.seq = 0
        self.bytes_in_flight = 0
        self.held = 0  # records in its open segment, as it has told last
        self.segments = 0
        self.last_segment = ""
        self.failure: FanOutError | None = None
        self._channel = channel
        self._outbox: asyncio.Queue[FromCoordinator] = asyncio.Queue()
        self._receiving: asyncio.Task[str] | None = None
        self._time = asyncio.get_running_loop().time
        self._connected_at = self._time()

    @property
    def connected(self) -> float:
        """Seconds since the lander connected."""
        return self._time() - self._connected_at

    @property
    def name(self) -> LanderName:
        """Which lander it is, for the log."""
        return LanderName(self.lander, self.host, self.pid)

    def __str__(self) -> str:
        return str(self.name)

    def statistics(self, bytes_per_second: Mapping[str, float]) -> LanderStatistics:
        """Return what the lander does, with the rates of splits as far as known; in any thread."""
        splits = sorted(self.splits)
        return LanderStatistics(
            lander=self.lander,
            host=self.host,
            pid=self.pid,
            splits=len(splits),
            segments=self.segments,
            bytes_per_second=sum((bytes_per_second.get(id_, 0.0) for id_ in splits), 0.0),
            connected=self.connected,
        )

    def tell(self, message: FromCoordinator) -> None:
        """Send a message as soon as the ones before it are sent."""
        self._outbox.put_nowait(message)

    async def attend(self, take_in: TakeIn) -> str | None:
        """Send and receive until the session is over; return why, or None if `hang_up` ended it.

        Cancellation: nothing is sent or taken in any more.
        """
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send())
            self._receiving = tasks.create_task(self._receive(take_in))
            await asyncio.wait([self._receiving])
            sending.cancel()
        return None if self._receiving.cancelled() else self._receiving.result()

    def hang_up(self) -> None:
        """Take no further message in."""
        if self._receiving is not None:
            self._receiving.cancel()

    async def _receive(self, take_in: TakeIn) -> str:
        """Take messages in until the session is over; return why it is."""
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    message = from_lander(await self._channel.receive())
                take_in(self, message)
            except TimeoutError:
                return f"it was silent for {SILENCE:g} s"
            except (ChannelClosedError, MessageError) as error:
                return text_of(error)

    async def _send(self) -> None:
        with suppress(ChannelClosedError):
            while True:
                message: FromCoordinator = Beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT_SECONDS):
                        message = await self._outbox.get()
                await self._channel.send(encode(message))


@final
class OrphanSweeper:
    """Know the sessions that are over, and delete what they have published and nothing counts.

    A lander is killed after it has published a segment and before it has told of it, or it goes on
    for a while after its session. Nothing of a session that is over is accepted any more, and what
    was accepted of it has smaller numbers.
    """

    def __init__(self) -> None:
        self._last: dict[int, str] = {}

    def ended(self, session: int, last: str) -> None:
        """Take in that a session is over; `last` is its last accepted segment, empty for none."""
        self._last[session] = last

    def sweep(self, storage: Storage, run: int) -> None:
        """Delete the segments of this run, and what is left of unfinished files. It blocks."""
        last = dict(self._last)  # this is another thread
        if not last:
            return
        for name in (*storage.walk(SEGMENTS), *storage.walk(STAGED)):
            file = _file(name)
            place = session_of(file)
            if place is None or place[0] != run or place[1] not in last:
                continue
            if file > _file(last[place[1]]):
                storage.delete(name)
        for path in storage.scratch().iterdir():
            place = session_of(path.name[path.name.find("run-") :])  # a number may be before it
            if place is not None and place[0] == run and place[1] in last:
                path.unlink(missing_ok=True)


def _file(name: str) -> str:
    return name.rpartition("/")[2]


@final
class BatchMinimum:
    """Let a batch wait for so many records, as long as no lander ends the wait.

    Landers tell how many records they hold in open segments. They are asked for these when all
    together have enough. A segment that comes unasked ends the wait: its first record has waited
    for `max_wait`, or it is full, or one of its splits has ended or moves. The others are asked for
    what they hold then, so that a wait ends in one batch.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._asked: list[LanderSession] = []

    def to_ask(
        self,
        sessions: Iterable[LanderSession],
        landed: Collection[TakenIn],
    ) -> tuple[LanderSession, ...]:
        """Return the landers that are to land now what they hold.

        `landed` are the segments that no batch has taken: their landers cannot land another.
        """
        if self._asked or self._enough(landed):
            return ()
        waiting = {session.lander for session, _ in landed}
        holding = [one for one in sessions if one.held and one.lander not in waiting]
        if landed or sum(session.held for session in holding) >= self._records:
            self._asked = holding
        return tuple(self._asked)

    def is_met(self, landed: Collection[TakenIn]) -> bool:
        """Return whether a batch takes what has landed, after `to_ask`."""
        return bool(landed) and (not self._asked or self._enough(landed))

    def answered(self, session: LanderSession) -> None:
        """Take in that a lander has landed, or has gone."""
        self._asked = [one for one in self._asked if one is not session]

    def taken(self) -> None:
        """Begin anew: a batch has taken what had landed."""
        self._asked.clear()

    def _enough(self, landed: Iterable[TakenIn]) -> bool:
        return sum(message.rows for _, message in landed) >= self._records
