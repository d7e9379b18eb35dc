"""How a share group names records: by ranges of offsets, of topics that may be created again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from fanout.kafka.share.offset_ranges import RecordSet, count_records, describe_ranges
from fanout.kafka.share.unconfirmed import read_unconfirmed, write_unconfirmed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanout.core.lending.dedup import Dedup
    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.group_admin import StartOffset, TopicIds
    from fanout.kafka.share.offset_ranges import OffsetRange


@final
class OffsetNaming:
    """Name the records of one group; `source` is the identity of the source."""

    owners: Final = "partitions"
    row_column: Final = "offset"
    unreadable: Final = (
        "a header has a key that is not UTF-8, and the client cannot read any of them"
    )

    def __init__(self, source: str, topic_ids: TopicIds) -> None:
        self._source = source
        self._topic_ids = topic_ids
        self._start_offsets: dict[Partition, int] = {}

    def new_set(self) -> RecordSet:
        """Return an empty set."""
        return RecordSet()

    def count(self, pieces: Iterable[OffsetRange]) -> int:
        """Return the number of records in some ranges."""
        return count_records(pieces)

    def describe(self, pieces: Sequence[OffsetRange]) -> tuple[str, ...]:
        """Return a name for each range, for messages."""
        return describe_ranges(pieces)

    def owner(self, piece: OffsetRange) -> Partition:
        """Return the partition, which a broker answers about."""
        return piece[0]

    def write(self, pieces: Iterable[OffsetRange]) -> str:
        """Return ranges as JSON."""
        return write_unconfirmed(self._source, pieces, self._topic_ids.known)

    def read(self, text: str) -> list[OffsetRange]:
        """Read ranges back."""
        return read_unconfirmed(text, self._source, self._topic_ids.known)

    def set_start_offsets(self, start_offsets: Mapping[Partition, StartOffset]) -> None:
        """Note the start offsets of the group: it delivers nothing before them."""
        ids = self._topic_ids.known
        self._start_offsets = {
            partition: at.offset
            for partition, at in start_offsets.items()
            if at.offset is not None and at.topic_id == ids.get(partition.topic)
        }

    def forget_gone(self, dedup: Dedup[OffsetRange]) -> None:
        """Forget unconfirmed records before the start offsets."""
        for partition, start in self._start_offsets.items():
            dedup.unconfirmed.remove((partition, 0, start))

    async def forget_replaced(self, dedup: Dedup[OffsetRange]) -> None:
        """Forget the records of topics that were deleted and created again."""
        replaced = await self._topic_ids.refresh()
        dedup.forget(lambda piece: piece[0].topic in replaced)
