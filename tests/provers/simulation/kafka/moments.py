"""Rare coincidences while a process reads Kafka, each of which a campaign has to have met.

A campaign that never meets one has proved nothing about it; see
`tests.provers.simulation.moments.moments`.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.reading.transport import PartitionFetch
    from tests.provers.simulation.kafka.partition_log import LogEra, StoredBatch

__all__ = ("KafkaSometimes", "note_answer")


@final
class KafkaSometimes(StrEnum):
    """Name a coincidence, and say in a sentence what has happened when it is met."""

    # What an answer holds.
    BEGINS_EARLY = "an answer begins with a batch that begins before the wanted offset"
    RESUMED_INSIDE_BATCH = "the first that a process asks for lies inside a batch"
    CUT_SHORT = "the last batch of an answer is cut short"
    LARGER_THAN_ASKED = "the first batch is larger than what was asked for"
    LEFT_OUT = "a partition is left out of an answer that is full"
    NOTHING_TO_DELIVER = "an answer has batches, and not one record to be delivered"
    ABORTED_BEFORE = "a transaction is aborted whose first record came in an earlier answer"
    ABORTED_TWICE = "an answer holds two aborted transactions of one producer"
    ENDED_AND_COMMITTED = "a producer aborts a transaction and commits another one in an answer"
    HELD_BACK = "an open transaction holds back what is replicated"
    # Where a reader stands.
    EXPIRED_UNDER_READER = "what comes next expires before a reader asks for it"
    CUT_BELOW_READER = "a log is cut below its reader, which asks for what is no more"
    CUT_UNSEEN = "a log is cut below its reader, and is as long again before the reader asks"
    GAP_AHEAD = "a gap is reported to a reader, which goes on behind it"
    GAP_BACK = "a gap is reported to a reader, which begins anew before it"
    # Who is asked.
    OLD_LEADER = "a broker is asked that does not lead any more"
    DIED_WAITING = "a broker dies while a fetch waits for data there"
    WARMING = "a broker that has just started knows no topic"
    LAGGING = "a new leader does not know yet what its reader asks for"
    BROKEN_OFF = "a broker that answers nothing is left, because its cluster misses it"
    REPLICA_READ = "a replica near its reader is read in place of the leader"
    REPLICA_DIED = "a replica dies, and a leader has named it to a reader"
    # The group.
    COMMITTED_NEWER = "a commit that has failed is followed by one of newer offsets"
    COMMIT_UNHEARD = "a commit succeeds, and its response is lost"
    STORED_AGAIN = "an offset of the group is stored again, and has not moved"
    CLOSED_COMMITTING = "a stream is closed while a commit is under way"
    # The producers of a shuffle.
    SUPERSEDED = "a generation of producers takes the place of one that has sent frames"
    OUTDATED = "a producer sends whose generation was superseded"
    BACK_FROM_IDLE = "a producer that was idle, or had ended, sends again"
    NOT_BOUND = "a record comes behind a watermark that does not bind its producer"
    WITHOUT_SILENT = "a watermark goes on without a producer that is silent"
    KNOWN_AGAIN = "a process goes on with producers of which it has received no frame itself"


def note_answer(
    moments: Counter[str],
    era: LogEra,
    batches: Sequence[StoredBatch],
    data: bytes,
    want: PartitionFetch,
    *,
    whole: bool,
) -> None:
    """Record the coincidences in an answer.

    Args:
        moments: How often each was met.
        era: What the partition holds.
        batches: The batches that there are for the answer.
        data: The bytes that are in it.
        want: What was wanted.
        whole: Whether the first batch comes, however large it is.
    """
    if not batches:
        return
    if not data:
        moments[KafkaSometimes.LEFT_OUT] += not whole
        return
    sent: list[StoredBatch] = []
    size = 0
    for stored in batches:
        if size + len(stored.data) > len(data):
            break
        size += len(stored.data)
        sent.append(stored)
    moments[KafkaSometimes.BEGINS_EARLY] += batches[0].base < want.offset
    moments[KafkaSometimes.CUT_SHORT] += size < len(data)
    moments[KafkaSometimes.LARGER_THAN_ASKED] += len(batches[0].data) > want.max_bytes
    _note_transactions(moments, era, sent, want.offset)


def _note_transactions(
    moments: Counter[str], era: LogEra, sent: Sequence[StoredBatch], offset: int
) -> None:
    end = sent[-1].next_offset
    records = era.records(offset, end, committed=True)
    moments[KafkaSometimes.NOTHING_TO_DELIVER] += not records
    inside = [
        one
        for one in era.transactions
        if one.last is not None and one.first < end and offset <= one.last < end
    ]
    aborted = Counter(one.producer for one in inside if one.aborted)
    moments[KafkaSometimes.ABORTED_BEFORE] += any(
        one.first < offset and one.aborted for one in inside
    )
    moments[KafkaSometimes.ABORTED_TWICE] += any(times > 1 for times in aborted.values())
    moments[KafkaSometimes.ENDED_AND_COMMITTED] += any(
        one.producer in aborted and not one.aborted for one in inside
    )
