"""Resolve the start and the stop that a user chose to an offset of each partition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

from fanout.core.positions import Committed, Cursor, Horizon, Latest, Timestamp
from fanout.core.sentence import Sentence
from fanout.core.starts import Dialect, parse_start, start_of_each
from fanout.errors import OptionError, ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.transport import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.core.starts import SplitStart
    from fanout.kafka.reading.transport import KafkaTransport


NO_EPOCH: Final = -1
"""The leader epoch of a record where it is not known."""
# The id is as Kafka's own tools print it. A shuffle has its producers behind it.
_STATE: Final = re.compile(r"(?:epoch ([0-9]{1,10})(?: |$))?(?:id ([\w-]{22})(?![\w-]))?", re.ASCII)


def cursor_before(offset: int, epoch: int = NO_EPOCH, topic_id: str = "") -> Cursor:
    """Return the position from which `offset` is the next one, after a record of a leader epoch.

    An empty id is that of a topic whose id is not known.
    """
    state = f"epoch {epoch}" if epoch >= 0 else ""
    if topic_id:
        state = f"{state} id {topic_id}".lstrip()
    return Cursor(offset - 1, state=state)


def epoch_at(position: Position) -> int:
    """Return the leader epoch of the record before a position; NO_EPOCH where it is not known."""
    epoch = _state(position)[0]
    return NO_EPOCH if epoch is None else int(epoch)


def topic_id_at(position: Position) -> str:
    """Return the id of the topic that a position is of; empty where it is not known."""
    return _state(position)[1] or ""


def _state(position: Position) -> tuple[str | None, str | None]:
    match = _STATE.match(position.state) if isinstance(position, Cursor) else None
    return (None, None) if match is None else (match[1], match[2])


def of_topic(position: Cursor, topic_id: str) -> Cursor:
    """Return a position with the id of its topic, unless it has one."""
    if topic_id_at(position):
        return position
    return cursor_before(next_offset(position), epoch_at(position), topic_id)


def next_offset(position: Cursor) -> int:
    """Return the first offset after a position."""
    return position.sequence + 1


def describe_position(position: Position) -> str:
    """Return where a partition is read from, for people."""
    if isinstance(position, Cursor):
        return f"at offset {next_offset(position)}"
    return "at the earliest offset"


def _cursor(start: object) -> Cursor | None:
    """Read an offset, the first to deliver, as a cursor; Kafka has 63 bits for one."""
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 2**63:
        return cursor_before(start)
    return None


DIALECT: Final = Dialect(
    choices=(
        "'earliest', 'latest', 'committed' or fanout.Committed(reset=...), an aware datetime, or "
        "a mapping of partitions, named like 'orders-0', to these or to offsets (whole numbers)"
    ),
    cursor=_cursor,
)


@final
class OffsetResolver:
    """Resolve a user's choices of starts and stops to offsets.

    `stored` has the committed positions from which partitions begin.
    """

    def __init__(self, transport: KafkaTransport, group_id: str | None, jitter: FullJitter) -> None:
        self._transport = transport
        self._group_id = group_id
        self._jitter = jitter
        self.stored: dict[Partition, Cursor] = {}

    async def resolve(
        self, option: str, value: object, splits: Sequence[Split]
    ) -> dict[Partition, Cursor]:
        """Return the position before the first record at or after a start or stop.

        Raises:
            OptionError: If the value does not fit the partitions.
            ServiceError: If the group has committed nothing for a partition and there is no reset,
                or offsets cannot be looked up for half a minute.
        """
        parsed = parse_start(value, DIALECT, option=option)
        of_each = start_of_each(parsed, splits, DIALECT, option=option)
        starts = {Partition.of(split_id): start for split_id, start in sorted(of_each.items())}
        return await with_retries(
            f"the offsets of {option} cannot be looked up",
            lambda: self._look_up(starts),
            self._jitter,
        )

    async def _look_up(self, starts: Mapping[Partition, SplitStart]) -> dict[Partition, Cursor]:
        starts = await self._without_committed(starts)
        ends = {
            partition: OffsetSpec.EARLIEST if isinstance(start, Horizon) else OffsetSpec.LATEST
            for partition, start in starts.items()
            if not isinstance(start, Cursor)
        }
        times = {
            partition: start.millis
            for partition, start in starts.items()
            if isinstance(start, Timestamp)
        }
        # The ends are requested before the times: where all records are older, the start is the
        # end as it was then, and records that are written later lie after it.
        offsets_of_ends = await self._transport.offsets(ends)
        offsets_of_times = await self._transport.offsets(times)
        found = {
            partition: start
            if isinstance(start, Cursor)
            else _before(offsets_of_times.get(partition), offsets_of_ends[partition])
            for partition, start in starts.items()
        }
        return {p: of_topic(at, self._transport.topic_id(p.topic)) for p, at in found.items()}

    async def _without_committed(
        self, starts: Mapping[Partition, SplitStart]
    ) -> Mapping[Partition, SplitStart]:
        """Replace each committed start by the committed offset, or by its reset."""
        committed = {p: start for p, start in starts.items() if isinstance(start, Committed)}
        if not committed:
            return starts
        if self._group_id is None:
            raise OptionError(
                Sentence.of("the start is committed offsets, but there is no {group_id}")
            )
        positions = await self._transport.committed(self._group_id, sorted(committed))
        replaced: dict[Partition, SplitStart] = dict(starts)
        missing = []
        for partition, start in committed.items():
            match positions.get(partition), start.reset:
                case Cursor() as position, _:
                    replaced[partition] = self.stored[partition] = position
                case None, "earliest":
                    replaced[partition] = Horizon()
                case None, "latest":
                    replaced[partition] = Latest()
                case _:
                    missing.append(str(partition))
        if missing:
            raise ServiceError(
                f"the group {self._group_id} has committed no offset of {', '.join(missing)}; "
                f"choose where these begin: fanout.Committed(reset='earliest') or reset='latest'"
            )
        return replaced


def _before(*offsets: int | None) -> Cursor:
    return cursor_before(next(offset for offset in offsets if offset is not None))
