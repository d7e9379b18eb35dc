"""Acknowledge records to the group, and count which acknowledgements the broker confirmed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from confluent_kafka import AcknowledgeType

from fanout.core.error_text import text_of
from fanout.core.limits import WINDOW, LogLimit
from fanout.kafka.share.offset_ranges import count_records

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from fanout.core.backoff import FullJitter
    from fanout.kafka.share.acquired import AcquiredRecords, Rows
    from fanout.kafka.share.dead_letters import DeadLetters
    from fanout.kafka.share.dedup import Dedup
    from fanout.kafka.share.group_admin import TopicIds
    from fanout.kafka.share.member import Member, PartitionErrors
    from fanout.kafka.share.offset_ranges import OffsetRange
    from fanout.kafka.share.options import ShareOptions

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class MemberCounts:
    """Counts of records, of all members together; see `LendingStatistics`."""

    acquired: int = 0
    redelivered: int = 0
    repeated: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    refused: int = 0


def _summarize(kind: str, left_out: Counter[str]) -> None:
    log.warning(
        "%d more acknowledgements (%s) were not confirmed within %.0f s",
        left_out.total(),
        kind,
        WINDOW,
    )


@final
@dataclass(slots=True)
class SharedState:
    """The state that all members of one stream share.

    `fetching` is set while members may fetch records, and `consumer_waits` while the consumer waits
    for some; `log_limit` bounds the lines about acknowledgements that are not confirmed.
    """

    options: ShareOptions
    lock_seconds: float
    topic_ids: TopicIds
    dedup: Dedup
    dead_letters: DeadLetters | None
    jitter: FullJitter
    counts: MemberCounts = field(default_factory=MemberCounts)
    fetching: asyncio.Event = field(default_factory=asyncio.Event)
    consumer_waits: asyncio.Event = field(default_factory=asyncio.Event)
    log_limit: LogLimit = field(default_factory=lambda: LogLimit(_summarize))


@final
class Acknowledgements:
    """Send the acknowledgements of one member; `notify` hears of each, and of its response."""

    def __init__(self, member: Member, shared: SharedState, notify: Callable[[], None]) -> None:
        self._member = member
        self._shared = shared
        self._notify = notify

    def send(
        self,
        acquired: AcquiredRecords,
        rows: Rows,
        kind: AcknowledgeType,
        *,
        counted: bool = False,
    ) -> asyncio.Future[list[OffsetRange]]:
        """Acknowledge rows; return those whose acknowledgement the broker did not confirm.

        The acknowledgement is sent and counted even if the future is cancelled or dropped.
        `counted` rows
        are released ones that have been counted as expired.
        """
        done: asyncio.Future[list[OffsetRange]] = asyncio.get_running_loop().create_future()
        failed: list[OffsetRange] = []
        if not len(rows):
            done.set_result(failed)
            return done
        ranges = acquired.ranges(rows)
        acquired.mark_done(rows)

        def count(response: asyncio.Future[PartitionErrors]) -> None:
            errors = response.result()
            if errors and self._shared.log_limit.admits(kind.name, ""):
                first, error = next(iter(errors.items()))
                log.warning(
                    "%s was not confirmed for %d partitions, the first is %s: %s",
                    kind.name,
                    len(errors),
                    first,
                    text_of(error),
                )
            failed.extend(range_ for range_ in ranges if range_[0] in errors)
            self._count_failed(failed, kind)
            if not counted:
                confirmed = [range_ for range_ in ranges if range_[0] not in errors]
                self._count(confirmed, kind)
            self._notify()
            if not done.cancelled():
                done.set_result(failed)

        self._notify()  # first, so that the next poll can carry the acknowledgement
        self._member.acknowledge(ranges, kind).add_done_callback(count)
        return done

    def _count(self, ranges: list[OffsetRange], kind: AcknowledgeType) -> None:
        counts, dedup = self._shared.counts, self._shared.dedup
        records = count_records(ranges)
        match kind:
            case AcknowledgeType.ACCEPT:
                counts.accepted += records
                dedup.mark_confirmed(ranges, asyncio.get_running_loop().time())
            case AcknowledgeType.REJECT:
                counts.rejected += records
                dedup.forget_delivered(ranges)
            case _:
                counts.released += records

    def _count_failed(self, ranges: list[OffsetRange], kind: AcknowledgeType) -> None:
        dedup = self._shared.dedup
        # A record that could not be released is available already, or will be soon.
        if kind is AcknowledgeType.RELEASE and dedup.enabled:
            return  # a delivered record is still going to be stored
        dedup.forget_delivered(ranges)
        if kind is not AcknowledgeType.RELEASE:
            records = count_records(ranges)
            self._shared.counts.expired += records
            self._shared.counts.refused += records
