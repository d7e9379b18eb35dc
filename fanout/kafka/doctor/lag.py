"""Find out how far positions in partitions are behind their ends."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fanout.core.findings import (
    MILLIS_PER_HOUR,
    Backlog,
    BacklogAdvice,
    examine_backlogs,
    examine_lag,
    named,
    problem,
)
from fanout.kafka.doctor.calls import CALL_ERRORS, reason
from fanout.kafka.reading.columns import arrival
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import FetchRefused, OffsetSpec, PartitionFetch, Throttled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.findings import Finding
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import KafkaTransport

# The partitions of one fetch: a broker answers with at least one batch of each.
_TOGETHER: Final = 16
_MAX_BYTES: Final = 64 * 1024 * 1024

BEYOND_END: Final = (
    "the position is beyond the end: the topic was created anew, or records were lost"
)
"""The obstacle of a partition that ends before its position."""

_CONTINUE: Final = (
    "open the stream with on_data_loss='earliest' to continue with the oldest record that is left"
)
_ADVICE: Final = BacklogAdvice(
    longer="a larger retention.ms of the topic keeps them meanwhile",
    lost=f"records that expired unread are lost; {_CONTINUE}",
    splits="partitions",
    obstacles={},
)


def examine_partitions(backlogs: Mapping[str, Backlog]) -> list[Finding]:
    """Judge whether unread records are kept, and how far a reader is behind."""
    beyond = {id_ for id_, each in backlogs.items() if each.obstacle == BEYOND_END}
    others = {id_: each for id_, each in backlogs.items() if id_ not in beyond}
    findings = [problem("backlog", f"{named(beyond)}: {BEYOND_END}", _CONTINUE)] if beyond else []
    if others:
        findings += examine_backlogs(others, _ADVICE)
    return [*findings, examine_lag(backlogs)]


async def read_partition_backlogs(
    transport: KafkaTransport,
    offsets: Mapping[Partition, int | None],
    retention: Mapping[str, float] | None = None,
) -> dict[str, Backlog]:
    """Find out how many records are unread in partitions, and how old the oldest of each is.

    Records of open and aborted transactions, and those that compaction has removed, are counted
    too: the calls are made with read_uncommitted. The oldest offset stands for None. Topics keep
    their records for these hours, or for ever.
    """
    begins = await transport.offsets(dict.fromkeys(offsets, OffsetSpec.EARLIEST))
    ends = await transport.offsets(dict.fromkeys(offsets, OffsetSpec.LATEST))
    at = {p: (begins[p] or 0) if offset is None else offset for p, offset in offsets.items()}
    unread = {p: at[p] for p in offsets if (begins[p] or 0) <= at[p] < (ends[p] or 0)}
    ages = await _ages(transport, unread)
    backlogs = {}
    for partition, offset in at.items():
        kept = (retention or {}).get(partition.topic, math.inf)
        begin, end = begins[partition] or 0, ends[partition] or 0
        records = max(0, end - max(offset, begin))
        age = ages.get(partition, 0 if not records else None)
        obstacle = age if isinstance(age, str) else BEYOND_END if offset > end else ""
        millis = None if obstacle or isinstance(age, str) else age
        hours = kept if millis is None else max(0.0, kept - millis / MILLIS_PER_HOUR)
        if offset < begin or offset > end:
            hours = 0.0
        elif not obstacle and not hours:
            hours = 1 / MILLIS_PER_HOUR  # it is overdue, and still there
        backlogs[str(partition)] = Backlog(
            retention=kept, hours=hours, records=records, millis=millis, obstacle=obstacle
        )
    return backlogs


async def _ages(
    transport: KafkaTransport, offsets: Mapping[Partition, int]
) -> dict[Partition, int | str | None]:
    """Return the age of the record at each offset in milliseconds, or why it is not known."""
    by_leader: defaultdict[int, list[Partition]] = defaultdict(list)
    for partition in offsets:
        leader = transport.leader(partition)
        if leader is not None:
            by_leader[leader].append(partition)
    ages: dict[Partition, int | str | None] = {}
    for leader, partitions in by_leader.items():
        for begin in range(0, len(partitions), _TOGETHER):
            some = partitions[begin : begin + _TOGETHER]
            try:
                ages |= await _ages_at(transport, leader, some, offsets)
            except CALL_ERRORS as error:
                ages |= dict.fromkeys(some, reason(error))
    return ages


async def _ages_at(
    transport: KafkaTransport,
    leader: int,
    partitions: Sequence[Partition],
    offsets: Mapping[Partition, int],
) -> dict[Partition, int | str | None]:
    fetches = {partition: PartitionFetch(offsets[partition], 1) for partition in partitions}
    answers = await transport.fetch(leader, fetches, max_wait=0.5)
    now = round(datetime.now(UTC).timestamp() * 1000)
    ages: dict[Partition, int | str | None] = {}
    for partition, answer in answers.items():
        if isinstance(answer, FetchRefused):
            ages[partition] = reason(answer.error)
            continue
        if isinstance(answer, Throttled):
            ages[partition] = f"broker {leader} throttles this client, for a quota"
            continue
        ages[partition] = None
        for part in decode_fetched(
            answer, partition, offset=offsets[partition], read_committed=False, max_bytes=_MAX_BYTES
        ):
            written = arrival(part.records, 0) if part.records.num_rows else None
            if written is not None:
                ages[partition] = max(1, now - written)
                break
    return ages
