"""From what a user asks for to offsets: where each partition begins, and where it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from fanout.core.positions import Committed, Cursor, Horizon, Latest, Timestamp
from fanout.core.starts import Dialect, parse_start, start_of_each
from fanout.errors import OptionError, ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.transport import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import Split
    from fanout.core.starts import SplitStart
    from fanout.kafka.reading.transport import KafkaTransport

__all__ = ("DIALECT", "OffsetResolver", "cursor_before", "next_offset")


def cursor_before(offset: int) -> Cursor:
    """Return the position from which `offset` is the next one."""
    return Cursor(offset - 1)


def next_offset(position: Cursor) -> int:
    """Return the first offset after a position."""
    return position.sequence + 1


def _cursor(start: object) -> Cursor | None:
    """Read an offset, the first that is wanted; Kafka has 63 bits for one."""
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
    """Find the offsets of what a user asks for.

    Args:
        transport: The calls.
        group_id: Whose committed offsets are meant; None where there is no group.
        jitter: How long to wait between two calls.
    """

    def __init__(self, transport: KafkaTransport, group_id: str | None, jitter: FullJitter) -> None:
        self._transport = transport
        self._group_id = group_id
        self._jitter = jitter

    async def find(
        self, option: str, wanted: object, splits: Sequence[Split]
    ) -> dict[Partition, int]:
        """Return the offset of the first record at or after a place, for each partition.

        Args:
            option: The name of the option that asks for it, for messages.
            wanted: What it says.
            splits: The partitions.

        Raises:
            OptionError: If it does not fit the partitions.
            ServiceError: If the group has committed nothing for a partition, and there is no
                reset, or offsets cannot be looked up for half a minute.
        """
        parsed = parse_start(wanted, DIALECT, option=option)
        of_each = start_of_each(parsed, splits, DIALECT, option=option)
        places = {Partition.of(split_id): place for split_id, place in sorted(of_each.items())}
        return await with_retries(
            f"the offsets of {option} cannot be looked up",
            lambda: self._look_up(places),
            self._jitter,
        )

    async def _look_up(self, places: Mapping[Partition, SplitStart]) -> dict[Partition, int]:
        places = await self._without_committed(places)
        edges = {
            partition: OffsetSpec.EARLIEST if isinstance(place, Horizon) else OffsetSpec.LATEST
            for partition, place in places.items()
            if not isinstance(place, Cursor)
        }
        times = {
            partition: place.millis
            for partition, place in places.items()
            if isinstance(place, Timestamp)
        }
        # The ends are asked for before the times: where no record is that young, the place is the
        # end as it was then, and what is written from then on lies after it.
        ends = await self._transport.offsets(edges)
        found = await self._transport.offsets(times)
        return {
            partition: next_offset(place)
            if isinstance(place, Cursor)
            else _first(found.get(partition), ends[partition])
            for partition, place in places.items()
        }

    async def _without_committed(
        self, places: Mapping[Partition, SplitStart]
    ) -> Mapping[Partition, SplitStart]:
        """Replace what the group has committed by the offset that it is, or by the reset."""
        asked_for = {p: place for p, place in places.items() if isinstance(place, Committed)}
        if not asked_for:
            return places
        if self._group_id is None:
            raise OptionError("committed offsets are asked for, but there is no group_id")
        offsets = await self._transport.committed(self._group_id, sorted(asked_for))
        replaced: dict[Partition, SplitStart] = dict(places)
        missing = []
        for partition, place in asked_for.items():
            match offsets.get(partition), place.reset:
                case int() as offset, _:
                    replaced[partition] = cursor_before(offset)
                case None, "earliest":
                    replaced[partition] = Horizon()
                case None, "latest":
                    replaced[partition] = Latest()
                case _:
                    missing.append(str(partition))
        if missing:
            raise ServiceError(
                f"the group {self._group_id} has committed no offset of {', '.join(missing)}; say "
                f"where these begin: fanout.Committed(reset='earliest') or reset='latest'"
            )
        return replaced


def _first(*offsets: int | None) -> int:
    return next(offset for offset in offsets if offset is not None)
