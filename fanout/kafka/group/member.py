"""One member of a consumer group: heartbeats, partitions that come and go, commits (KIP-848).

The broker assigns; no member leads. A heartbeat renews the member's session, and its answer says
which partitions the member is to own. It gives the others up first, says so, and is given new ones
when their former owners have done the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import KafkaError

from fanout.core.cancellation import FailingTasks, cancellations, prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.positions import Cursor, Horizon
from fanout.core.statistics import CommitStatistics
from fanout.errors import FanOutError, ServiceError
from fanout.kafka.group.calls import FENCED, AssignedPartition, Code, GroupOffsets, Identity
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.offsets import cursor_before

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import End
    from fanout.core.membership import SplitHolder
    from fanout.core.positions import Position
    from fanout.core.source import Connection
    from fanout.kafka.group.calls import GroupCalls, Heartbeat

log = logging.getLogger(__name__)

# The epochs of a heartbeat by which a member joins, leaves, and leaves to come back with its static
# id (ConsumerGroupHeartbeatRequest.json).
_JOINS: Final = 0
_LEAVES: Final = -1
_LEAVES_FOR_NOW: Final = -2

# The share of the session in which a member delivers without an answer: clocks do not run alike.
_VALID: Final = 0.95
# Seconds between what the member promises the broker and what it does.
_MARGIN: Final = 15.0
# Seconds after which the session timeout of the group is asked for again: operators change it.
_SETTINGS_AGE: Final = 60.0
# Seconds before a heartbeat that failed is sent again.
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 1.0
# Seconds from the answer to a commit to the next one, with all that was acknowledged meanwhile.
_BETWEEN_COMMITS: Final = 0.1
# A process that has died keeps its static id for one session.
_INSTANCE_SESSIONS: Final = 1.5
_LEAVING: Final = 5.0  # seconds that leaving may take
_LAST_COMMITS: Final = 4.0  # seconds of it that the last commit may be tried for


@final
class ConsumerMember:
    """Take part in a group; a `Membership` of `fanout.core.membership`."""

    def __init__(
        self,
        calls: GroupCalls,
        connection: Connection,
        *,
        instance_id: str | None,
        handover_timeout: float,
        starts: Mapping[str, Position],
        jitter: FullJitter,
    ) -> None:
        self.valid_until = math.inf
        self._calls = calls
        self._handover_timeout = handover_timeout
        # The broker takes all partitions from a member that gives some up too late.
        self._rebalance_timeout = handover_timeout + _MARGIN
        self._connection = connection
        self._starts = starts
        self._jitter = jitter
        self._clock = asyncio.get_running_loop().time
        self._identity = Identity(str(uuid.uuid4()), _JOINS, instance_id)
        self._topics: Sequence[str] = ()
        self._topics_changed = False
        self._owned: frozenset[AssignedPartition] = frozenset()
        self._target: frozenset[AssignedPartition] = frozenset()
        self._session = math.inf
        self._renewed = math.inf  # when the last heartbeat was sent that was answered well
        self._give_up_by = math.inf  # when the broker takes everything, unless it hears of less
        self._owned_changed = False
        self._beat, self._change, self._store = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stored, self._told = asyncio.Event(), asyncio.Event()
        self._giving_up = asyncio.Event()  # commits are urgent then
        self._committing = asyncio.Lock()
        self._pending: dict[Partition, Cursor] = {}
        # What was acknowledged and is left to the next transaction.
        self._withheld: dict[Partition, Cursor] = {}
        self._counts = _PartitionCounts()
        self._committed: Mapping[str, Position] = {}
        self._succeeded = self._failed = 0

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._calls.group

    def store(self, positions: Mapping[str, Position]) -> None:
        """Commit soon the offsets after positions of partitions that this member owns."""
        for split_id, position in positions.items():
            if isinstance(position, Cursor):
                self._pending[partition := Partition.of(split_id)] = position
                self._withheld.pop(partition, None)
        if self._pending:
            self._store.set()

    def finish(self, end: End) -> None:
        """Do nothing: a partition has no end."""

    def claim(self, positions: Mapping[Partition, Cursor]) -> GroupOffsets:
        """Claim the offsets behind positions for a transaction, by the present epoch.

        What was acknowledged before, and is not committed yet, is among them.
        """
        owned, texts = {each.partition for each in self._owned}, dict(self._counts.texts)
        withheld = {p: at for p, at in self._withheld.items() if p in owned}
        return GroupOffsets.behind(withheld | dict(positions), self.group, texts, self._identity)

    async def commits_nothing(self) -> None:
        """Wait for a commit that is under way, and begin no other one: it could arrive too late."""
        async with self._committing:
            self._withheld |= self._pending
            self._pending.clear()

    async def follows(self, before: Identity | None) -> bool:
        """Ask the coordinator at once; return whether the member has another epoch by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._session):
                for _ in range(2):  # the answer to a heartbeat from before says nothing
                    if self._identity == before:
                        self._told.clear()
                        self._beat.set()
                        await self._told.wait()
        return self._identity != before

    def stored(self, positions: Mapping[Partition, Cursor]) -> None:
        """Count positions that a transaction has stored."""
        done = {str(partition): at for partition, at in positions.items()}
        self._committed = {**self._committed, **done}  # a new one: other threads read statistics
        self._succeeded += 1
        self._withheld.clear()
        self._stored.set()

    @property
    def commits(self) -> CommitStatistics:
        """Return what the group has stored of this member's; from any thread."""
        return CommitStatistics(self._committed, self._succeeded, self._failed)

    async def take_part(self, holder: SplitHolder) -> None:
        """Join, and follow what the coordinator assigns, until cancelled."""
        await self._discover()
        async with FailingTasks() as tasks:
            for follow in (self._heartbeats, self._changes, self._expiry):
                tasks.spawn("fanout member", follow, holder)
            for work in (self._commits, self._discoveries):
                tasks.spawn("fanout member", work)
            await tasks.failure()

    async def leave(self) -> None:
        """Commit what is acknowledged, and leave the group, within a few seconds."""
        if self._identity.epoch == _JOINS:
            return
        static = self._identity.instance_id is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING):
                self._pending = self._withheld | self._pending
                until = self._clock() + _LAST_COMMITS
                commit = partial(self._commit_the_last, until)
                await self._at_the_end("commit the last offsets to", commit, until)
                leave = partial(
                    self._calls.heartbeat, self._as(_LEAVES_FOR_NOW if static else _LEAVES)
                )
                await self._at_the_end("leave", leave, until + 3 * _PAUSE)

    async def _at_the_end(
        self, what: str, step: Callable[[], Awaitable[object]], until: float
    ) -> None:
        """Take a last step, again where the coordinator has just moved; tell if it cannot be."""
        stops = cancellations()
        while True:
            try:
                await step()
            except (KafkaError, OSError, FanOutError) as error:
                prefer_cancellation(error, after=stops)
                passes = isinstance(error, KafkaError) and error.retriable
                if not passes or self._clock() >= until:
                    log.warning("cannot %s the group %s: %s", what, self.group, text_of(error))
                    return
            else:
                return
            await asyncio.sleep(_PAUSE)

    async def _commit_the_last(self, until: float) -> None:
        """Commit what is pending; a heartbeat whose answer nobody took may have moved the epoch."""
        while not await self._commit() and self._clock() < until:
            answer = await self._calls.heartbeat(self._identity, owned=self._owned)
            if answer.code in FENCED:
                return
            if not answer.code:
                self._identity = self._as(answer.epoch)
            await asyncio.sleep(_PAUSE)
        if self._pending:
            log.warning("the last offsets are not committed to the group %s", self.group)

    # Heartbeats.

    async def _heartbeats(self, holder: SplitHolder) -> None:
        interval, asked, failures = 0.0, -math.inf, 0
        refused_since: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._beat.wait()
            leaving = self._identity.epoch == _LEAVES
            full = not leaving and (failures > 0 or self._identity.epoch == _JOINS)
            told = self._owned if full or (self._owned_changed and not leaving) else None
            self._beat.clear()
            self._owned_changed = False
            member, sent = self._identity, self._clock()
            try:
                if sent - asked >= _SETTINGS_AGE:
                    self._session, asked = await self._session_timeout(), sent
                    sent = self._clock()
                answer = await self._calls.heartbeat(
                    member,
                    rebalance_timeout=self._rebalance_timeout if full else None,
                    topics=self._topics if full or self._topics_changed else None,
                    owned=told,
                )
            except KafkaError as error:
                failures += 1
                interval = min(max(_PAUSE, self._jitter.delay(failures)), _LONGEST_PAUSE)
                log.info("a heartbeat to the group %s failed: %s", self.group, text_of(error))
                continue
            failures = 0
            if leaving:
                self._identity = self._anew()
            if member is not self._identity:  # everything was given up meanwhile
                interval = 0.0
                continue
            match answer.code:
                case Code.NONE:
                    refused_since = None
                    interval = await self._renew(holder, sent, answer, told)
                case Code.UNRELEASED_INSTANCE_ID:
                    refused_since = sent if refused_since is None else refused_since
                    self._check_instance(sent - refused_since)
                    interval = 1.0
                case code:
                    gone = code == Code.UNKNOWN_MEMBER_ID
                    await self._rejoin(holder, self._anew() if gone else None)
                    interval = _PAUSE
            self._told.set()

    async def _renew(
        self,
        holder: SplitHolder,
        sent: float,
        answer: Heartbeat,
        told: frozenset[AssignedPartition] | None,
    ) -> float:
        """Take in a good answer; return the seconds until the next heartbeat."""
        if self._clock() >= self.valid_until:
            # It came too late: others may have had the partitions meanwhile.
            await self._rejoin(holder)
            return _PAUSE
        self._topics_changed = False
        self._identity = self._as(answer.epoch)
        self._renewed = sent
        if told is not None and told <= self._target:
            self._give_up_by = math.inf
        if answer.assignment is not None:
            self._target = answer.assignment
        if self._owned - self._target and self._give_up_by == math.inf:
            self._give_up_by = sent + self._rebalance_timeout
        self._set_validity()
        if self._target != self._owned:
            self._change.set()
        return answer.interval

    async def _rejoin(self, holder: SplitHolder, identity: Identity | None = None) -> None:
        """Give everything up at once, leave, and begin as a new member.

        The coordinator may not have missed this one. It would take a commit that is on its way
        after the partitions are granted anew, unless the member has left before.
        """
        lost, self._owned, self._target = self._owned, frozenset(), frozenset()
        self._identity = identity or self._as(_LEAVES)
        self._give_up_by = self._renewed = self.valid_until = math.inf
        self._pending.clear()
        self._withheld.clear()
        self._stored.set()
        await holder.lose([str(each.partition) for each in sorted(lost)])

    async def _expiry(self, holder: SplitHolder) -> None:
        """Give everything up when the session is over without a heartbeat that was answered."""
        while True:
            left = min(self.valid_until - self._clock(), 1.0)
            if left > 0:
                await asyncio.sleep(left)
            else:
                log.warning(
                    "the group %s has not been heard of in time (its session timeout is %g s): "
                    "other members may have the partitions of this one",
                    self.group,
                    self._session,
                )
                await self._rejoin(holder)
                self._beat.set()

    def _set_validity(self) -> None:
        self.valid_until = min(self._renewed + _VALID * self._session, self._give_up_by)

    async def _session_timeout(self) -> float:
        try:
            return await self._calls.session_timeout()
        except KafkaError as error:
            if error.retriable:
                raise
            raise ServiceError(
                f"the session timeout of the group {self.group} cannot be read: {text_of(error)}; "
                f"grant the principal DESCRIBE_CONFIGS on the group"
            ) from error

    def _check_instance(self, seconds: float) -> None:
        if seconds > _INSTANCE_SESSIONS * self._session:
            raise ServiceError(
                f"another member of the group {self.group} has the "
                f"instance_id={self._identity.instance_id!r}; give each process its own"
            )

    def _as(self, epoch: int) -> Identity:
        return Identity(self._identity.id, epoch, self._identity.instance_id)

    def _anew(self) -> Identity:
        return Identity(str(uuid.uuid4()), _JOINS, self._identity.instance_id)

    # Partitions that come and go.

    async def _changes(self, holder: SplitHolder) -> None:
        while True:
            await self._change.wait()
            self._change.clear()
            try:
                await self._give_up(holder, self._owned - self._target)
                await self._take(holder, self._target - self._owned)
            except KafkaError as error:
                log.info("a partition of the group %s has to wait: %s", self.group, text_of(error))
                await asyncio.sleep(_PAUSE)
                self._change.set()

    async def _give_up(self, holder: SplitHolder, given: frozenset[AssignedPartition]) -> None:
        if not given:
            return
        until = self._clock() + self._handover_timeout
        names = [str(each.partition) for each in sorted(given)]
        self._giving_up.set()
        await holder.hand_over(names, until)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while any(each.partition in self._pending | self._withheld for each in given):
                    self._stored.clear()
                    await self._stored.wait()
        for each in given:
            self._pending.pop(each.partition, None)
            self._withheld.pop(each.partition, None)
        self._giving_up.clear()
        self._own(self._owned - given)

    async def _take(self, holder: SplitHolder, taken: frozenset[AssignedPartition]) -> None:
        if not taken:
            return
        member = self._identity
        partitions = [each.partition for each in sorted(taken)]
        splits = await self._connection.splits()
        siblings = {Partition.of(split.id) for split in splits}
        topics = {partition.topic for partition in partitions}
        siblings = {each for each in siblings if each.topic in topics} | {*partitions}
        stored = await self._calls.stored(member, siblings)
        self._counts.learn({p: each.text for p, each in stored.items()}, siblings)
        positions: dict[Partition, Position] = {}
        first: dict[Partition, Cursor] = {}
        for partition in partitions:
            at = stored[partition]
            if at.offset is not None:
                positions[partition] = cursor_before(at.offset, at.epoch)
                continue
            start = self._starts.get(str(partition), Horizon())
            if self._counts.is_new(partition) or not isinstance(start, Cursor):
                start = Horizon()
            else:
                first[partition] = start
            positions[partition] = start
        if first:
            # Whoever goes on from here begins at the same place.
            codes = await self._calls.commit(member, first, self._counts.texts)
            if any(codes.values()):
                return  # another heartbeat says who owns it
        late = self._clock() >= self.valid_until  # a process that stood still
        if late or member != self._identity or not taken <= self._target:
            self._change.set()
            return
        for partition in partitions:
            holder.grant(partition.split, positions[partition])
        self._own(self._owned | taken)

    def _own(self, owned: frozenset[AssignedPartition]) -> None:
        """Tell the broker at once what is owned."""
        self._owned, self._owned_changed = owned, True
        self._beat.set()

    # Commits.

    async def _commits(self) -> None:
        failures = 0
        while True:
            await self._store.wait()
            self._store.clear()
            try:
                done = await self._commit()
            except (KafkaError, OSError) as error:
                prefer_cancellation(error)
                log.warning("cannot commit to the group %s: %s", self.group, text_of(error))
                done = False
            self._succeeded, self._failed = self._succeeded + done, self._failed + (not done)
            failures = 0 if done else failures + 1
            if done:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BETWEEN_COMMITS):
                        await self._giving_up.wait()
            else:
                await asyncio.sleep(max(_PAUSE, self._jitter.delay(failures)))
                self._store.set()

    async def _commit(self) -> bool:
        """Commit what is pending and owned; return whether nothing is left to be tried again."""
        owned = {each.partition for each in self._owned}
        async with self._committing:
            positions = {p: at for p, at in self._pending.items() if p in owned}
            if not positions:
                return True
            codes = await self._calls.commit(self._identity, positions, self._counts.texts)
        done = {str(p): positions[p] for p, code in codes.items() if not code}
        self._committed = {**self._committed, **done}  # a new one: other threads read statistics
        for partition, code in codes.items():
            if code in {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION}:
                if self._pending.get(partition) is positions[partition]:
                    del self._pending[partition]
            elif code in FENCED:
                self._beat.set()  # the answer says that all is lost
        self._stored.set()
        return not any(p in self._pending for p in codes if codes[p])

    # Topics.

    @property
    def _interval(self) -> float:
        return self._connection.pacing.discovery_interval or math.inf

    async def _discover(self) -> None:
        splits = await self._connection.splits()
        topics = sorted({Partition.of(split.id).topic for split in splits})
        self._topics_changed = topics != self._topics
        if self._topics_changed:
            await self._calls.learn(topics)
            self._topics = topics

    async def _discoveries(self) -> None:
        while True:
            await asyncio.sleep(min(self._interval, 3600.0))
            try:
                await self._discover()
            except (KafkaError, FanOutError) as error:
                log.warning("the topics cannot be listed: %s", text_of(error))
            else:
                if self._topics_changed:
                    self._beat.set()


@final
class _PartitionCounts:
    """How many partitions each topic had when the group began with it.

    The members store it beside each offset. A partition that was added later has no offset either,
    and is read from its beginning: all of its records are new to the group.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def learn(self, texts: Mapping[Partition, str], partitions: Collection[Partition]) -> None:
        """Take in the texts of partitions; where a topic has none, the group begins with it now."""
        for topic in {partition.topic for partition in partitions}:
            found = [_count(text) for p, text in texts.items() if p.topic == topic]
            counts = [count for count in found if count is not None]
            # Another client has committed without a text: nobody knows how many there were.
            began = len([p for p in partitions if p.topic == topic])
            self._counts[topic] = min(counts) if counts else began
            self.texts[topic] = json.dumps({"partitions": self._counts[topic]})

    def is_new(self, partition: Partition) -> bool:
        """Return whether a partition was added after the group began with its topic."""
        return partition.number >= self._counts[partition.topic]


def _count(text: str) -> int | None:
    try:
        count = json.loads(text)["partitions"]
    except (ValueError, KeyError, TypeError):
        return None
    return count if isinstance(count, int) and count > 0 else None
