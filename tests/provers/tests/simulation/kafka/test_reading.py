"""Check that the oracle finds the mistakes of a reader of Kafka, each written by hand."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Batch, Gap
from fanout.core.positions import Cursor, Range
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.columns import SCHEMA
from fanout.testing.virtual_time.loop import simulate
from tests.provers.simulation.armed_faults import ArmedFaults
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kafka.cluster import SimCluster
from tests.provers.simulation.kafka.oracle import KafkaOracle
from tests.provers.simulation.kafka.partition_log import (
    KafkaRecord,
    LogEra,
    LoggedTransaction,
    PartitionLog,
    StoredBatch,
)
from tests.provers.simulation.kafka.sent_responses import SentResponses
from tests.provers.simulation.kafka.service import KafkaSimService
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents
from tests.support.kafka.record_batches import ABORT, COMMIT, batch, marker, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.provers.simulation.kafka.faults import KafkaFault
    from tests.provers.simulation.kafka.oracle import KafkaReading

import pyarrow as pa

PARTITION = Partition("t", 0)
FOREVER = float("inf")


def stored(
    base: int, count: int = 2, transaction: int | None = None, at: float = 0.0
) -> StoredBatch:
    made = rows(count)
    data = batch(made, base, transactional=transaction is not None)
    records = tuple(KafkaRecord(base + row.offset, *row[1:]) for row in made)
    return StoredBatch(base, base + count, at, data, records, transaction)


def mark(offset: int, kind: int) -> StoredBatch:
    return StoredBatch(offset, offset + 1, 0.0, marker(kind, offset, 9), ())


def era(*, since: float = -FOREVER, until: float = FOREVER, start: int = 0) -> LogEra:
    """Make an era: records 0 and 1, 2 and 3 aborted, 5 and 6 committed, 8 and 9."""
    return LogEra(
        since=since,
        until=until,
        batches=(
            stored(0),
            stored(2, transaction=0),
            mark(4, ABORT),
            stored(5, transaction=1),
            mark(7, COMMIT),
            stored(8),
        ),
        transactions=(
            LoggedTransaction(9, 2, 4, 0.0, 0.0, aborted=True),
            LoggedTransaction(9, 5, 7, 0.0, 0.0, aborted=False),
        ),
        starts=((-FOREVER, 0), *([(1.0, start)] if start else [])),
    )


CUT = LogEra(since=1.0, until=FOREVER, batches=(stored(0), stored(2)), transactions=())


class Case:
    """One process, which reads from an offset of one partition."""

    def __init__(self, *eras: LogEra, offset: int = 0, seen: Sequence[int] = (0,)) -> None:
        logs = {PARTITION: PartitionLog(PARTITION, eras or (era(),))}
        cluster = SimCluster(logs, 1, (), until=9.0, random=Random(7))
        armed: ArmedFaults[KafkaFault] = ArmedFaults((), lambda _: None)
        service = KafkaSimService(
            cluster, armed, Random(7), committed=True, request_timeout=30.0, fetch_max_bytes=1 << 20
        )
        sent_responses = SentResponses(0.0)
        sent_responses.eras[PARTITION].extend(seen)
        self.oracle = KafkaOracle(service, {1: sent_responses}, lambda _: True, "earliest")
        run = ProcessRun(1, HeldEvents(1 << 20))
        self.reading: KafkaReading = self.oracle.begin(self.position(offset), run)

    @staticmethod
    def position(offset: int) -> str:
        state = SplitPosition(PARTITION.split, Cursor(offset - 1))
        return Checkpoint("kafka:simulated", {"t-0": state}).to_json()

    def deliver(
        self,
        offsets: Sequence[int],
        until: int,
        *,
        stood: int | None = None,
        gap: tuple[int, int] | None = None,
        value: bytes | None = None,
    ) -> None:
        """Hand on the records at some offsets, and say to stand before another one."""
        known = {r.offset: r for made in (era(), CUT) for r in reversed(made.everything)}
        records = [known[offset] for offset in offsets]
        columns = {
            "key": [record.key for record in records],
            "value": [record.value if value is None else value for record in records],
            "topic": ["t"] * len(records),
            "partition": [0] * len(records),
            "offset": list(offsets),
            "timestamp": [record.timestamp * 1000 for record in records],
            "timestampType": [0] * len(records),
            "headers": [[]] * len(records),
        }
        before = self.reading.places[PARTITION].next if stood is None else stood
        gaps = [] if gap is None else [Gap(Cursor(gap[0] - 1), Cursor(gap[1] - 1), "lost")]
        self.reading.deliver(
            Batch(
                PARTITION.split,
                pa.RecordBatch.from_pydict(columns, schema=SCHEMA),
                Range(Cursor(before - 1), Cursor(until - 1)),
                gaps=tuple(gaps),
            )
        )


def at(moment: float, what: Callable[[], object]) -> str:
    """Do something at a moment of virtual time; return the word that the oracle has for it."""

    async def main() -> str:
        await asyncio.sleep(moment)
        try:
            what()
        except OracleError as error:
            return str(error).partition(":")[0]
        return ""

    return simulate(main)


def test_what_comes_next_is_right_and_counted() -> None:
    def right() -> None:
        case = Case()
        case.deliver([0, 1], 2)
        case.deliver([5, 6], 8, stood=5)
        case.deliver([8, 9], 10)
        assert case.oracle.checked == 6
        assert case.reading.missing(None) == {}

    assert at(0.0, right) == ""


@pytest.mark.parametrize(
    ("offsets", "until", "word"),
    [
        ([1], 2, "lost"),
        ([0, 1, 8, 9], 10, "lost"),
        ([1, 0], 2, "out of order"),
        ([0, 0, 1], 2, "duplicated"),
        ([0, 1, 2, 3], 5, "broke a rule"),
        ([0, 1, 5, 6], 7, ""),
    ],
)
def test_what_is_wrong_about_a_batch_is_named(offsets: list[int], until: int, word: str) -> None:
    assert at(0.0, lambda: Case().deliver(offsets, until)) == word


def test_records_that_came_before_are_duplicated_and_others_bytes_altered() -> None:
    assert at(0.0, lambda: Case(offset=2).deliver([1, 5, 6], 8)) == "duplicated"
    assert at(0.0, lambda: Case().deliver([0, 1], 2, value=b"!")) == "altered"


def test_what_is_still_to_come_is_missing() -> None:
    def counted() -> None:
        case = Case()
        assert case.reading.missing(None) == {"t-0": 6}
        case.deliver([0, 1], 2)
        assert case.reading.missing(None) == {"t-0": 4}
        assert case.reading.missing("t-0") == {}

    assert at(0.0, counted) == ""


def test_a_gap_is_right_where_records_have_expired_and_only_as_far_as_they_have() -> None:
    expired = era(start=5)

    assert at(2.0, lambda: Case(expired, offset=2).deliver([5, 6], 8, gap=(2, 5))) == ""
    assert at(2.0, lambda: Case(expired).deliver([8, 9], 10, gap=(0, 8))) == "lost"
    assert at(0.5, lambda: Case(expired, offset=2).deliver([5, 6], 8, gap=(2, 5))) == "lost"
    assert at(2.0, lambda: Case().deliver([5, 6], 8, gap=(0, 5))) == "lost"


def test_a_reader_begins_anew_where_its_log_was_cut_off_and_nowhere_else() -> None:
    eras = (era(until=1.0), CUT)

    def begun() -> None:
        case = Case(*eras, offset=10, seen=(0, 1))
        case.deliver([0, 1], 2, stood=0, gap=(10, 0))
        assert case.reading.missing(None) == {"t-0": 2}

    assert at(2.0, begun) == ""
    assert at(0.5, lambda: Case(*eras, offset=10).deliver([0, 1], 2, gap=(10, 0))) == "lost"
    assert at(2.0, lambda: Case(offset=10).deliver([0, 1], 2, gap=(10, 0))) == "lost"


def test_a_log_that_was_cut_unseen_is_read_on_where_its_reader_stands() -> None:
    eras = (era(until=1.0), CUT)

    assert at(2.0, lambda: Case(*eras, offset=2, seen=(0, 1)).deliver([2, 3], 4)) == ""
    assert at(2.0, lambda: Case(*eras, offset=2, seen=(0,)).deliver([2, 3], 4)) != ""


def test_what_is_acknowledged_of_the_log_before_counts_for_nothing() -> None:
    def acknowledged() -> None:
        case = Case(era(until=1.0), CUT, offset=10, seen=(0, 1))
        case.deliver([0, 1], 2, stood=0, gap=(10, 0))
        case.reading.acknowledge({"t-0": Cursor(9)})
        assert case.reading.places[PARTITION].acknowledged == 0
        case.reading.acknowledge({"t-0": Cursor(1)})
        assert case.reading.places[PARTITION].acknowledged == 2

    assert at(2.0, acknowledged) == ""


def test_no_position_is_ahead_of_what_was_handed_on_or_acknowledged() -> None:
    def stored_too_far() -> None:
        case = Case()
        case.deliver([0, 1], 2)
        case.reading.check_stored(case.position(5))  # what lies between is aborted
        case.reading.check_stored(case.position(6))

    def acknowledged_too_far() -> None:
        case = Case()
        case.deliver([0, 1], 2)
        case.reading.acknowledge({"t-0": Cursor(0)})
        case.reading.check_acknowledged(case.position(1))
        case.reading.check_acknowledged(case.position(2))

    assert at(0.0, stored_too_far) == "lost"
    assert at(0.0, acknowledged_too_far) == "lost"
