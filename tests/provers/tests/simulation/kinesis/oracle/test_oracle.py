from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Batch, Gap, Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Range
from fanout.kinesis.aws.api import HashRange
from fanout.kinesis.reading.decode import SCHEMA
from tests.provers.simulation.armed_faults import ArmedFaults
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents
from tests.provers.simulation.kinesis.oracle.oracle import KinesisOracle
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.kinesis.service.service import KinesisSimService
from tests.provers.simulation.kinesis.service.stream_log import (
    SourceLog,
    SourceRecord,
    SourceShard,
    SubRecord,
)
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.positions import Position
    from tests.provers.simulation.kinesis.oracle.oracle import KinesisReading
    from tests.provers.simulation.kinesis.service.stream_log import KinesisRow

ALL_KEYS = HashRange(0, 2**128 - 1)


def shard(index: int, *parents: SourceShard) -> SourceShard:
    """Build a shard of four records, the third of which holds two rows."""
    opened = EPOCH_MILLIS + 1000 * index
    ids = tuple(parent.shard_id for parent in parents)
    empty = SourceShard(index, ids, ALL_KEYS, opened, opened + 900, ())
    puts = [
        (SubRecord("k", b"0"),),
        (SubRecord("k", b"1"),),
        (SubRecord("k", b"2"), SubRecord("l", b"3")),
        (SubRecord("k", b"4"),),
    ]
    records = tuple(
        SourceRecord(
            empty.number_at(opened + i) + 1,
            opened + i,
            "k",
            parts,
            "plain" if len(parts) == 1 else "aggregated",
        )
        for i, parts in enumerate(puts)
    )
    return replace(empty, records=records)


PARENT = shard(0)
CHILD = shard(1, PARENT)
LOG = SourceLog({each.shard_id: each for each in (PARENT, CHILD)})
ROWS = PARENT.rows


class OracleStream:
    """An oracle, and what happens to the stream that it knows."""

    def __init__(self) -> None:
        self.service = KinesisSimService(
            draw_kinesis_plan(0), LOG, Random(7), ArmedFaults((), lambda _: None)
        )
        self.oracle = KinesisOracle(LOG, self.service)
        self.run = ProcessRun(1, HeldEvents(1 << 20))

    def reading(self, *stored: SplitPosition) -> KinesisReading:
        self.run = ProcessRun(self.run.number + 1, HeldEvents(1 << 20))
        return self.oracle.begin(positions(*stored), self.run)

    def trim(self, count: int) -> None:
        """Let the first records of the parent expire."""
        self.service.retention.trimmed[PARENT.shard_id] = PARENT.records[count - 1].sequence


def positions(*stored: SplitPosition) -> str:
    return Checkpoint("s", {state.split.id: state for state in stored}).to_json()


def at(position: Position, *, ended: bool = False) -> SplitPosition:
    return SplitPosition(Split(PARENT.shard_id), position, ended)


def after(row: KinesisRow, *, inside: bool = False) -> Cursor:
    return Cursor(row.sequence, row.sub if inside else WHOLE_RECORD)


def batch(
    rows: Sequence[KinesisRow],
    *,
    until: Position | None = None,
    gaps: tuple[Gap, ...] = (),
    of: SourceShard = PARENT,
    **altered: Any,
) -> Batch:
    """Build a batch of rows; `altered` columns of the first row are other ones."""
    lines = [
        {
            "partitionKey": row.key,
            "data": row.data,
            "stream": "s",
            "shardId": of.shard_id,
            "sequenceNumber": str(row.sequence),
            "approximateArrivalTimestamp": row.arrival * 1000,
            "subSequenceNumber": row.sub,
        }
        for row in rows
    ]
    lines[0] |= altered
    records = pa.RecordBatch.from_pylist(lines, schema=SCHEMA)
    return Batch(
        Split(of.shard_id), records, Range(Horizon(), until or after(rows[-1])), None, gaps
    )


def refusal(reading: KinesisReading, delivered: Batch) -> str:
    with pytest.raises(OracleError) as caught:
        reading.deliver(delivered)
    return str(caught.value).partition(":")[0]


def test_what_comes_once_and_in_order_is_right() -> None:
    stream = OracleStream()
    reading = stream.reading()
    reading.deliver(batch(ROWS[:2]))
    reading.deliver(batch(ROWS[2:3], until=after(ROWS[2], inside=True)))
    reading.deliver(batch(ROWS[3:]))
    reading.deliver(batch(CHILD.rows, of=CHILD))
    assert reading.missing(None) == {}
    assert stream.oracle.checked == 10


def test_a_row_that_is_left_out_is_lost() -> None:
    reading = OracleStream().reading()
    assert refusal(reading, batch(ROWS[1:])) == "lost"


def test_a_row_that_is_left_out_inside_a_batch_is_lost() -> None:
    assert refusal(OracleStream().reading(), batch([*ROWS[:1], *ROWS[2:]])) == "lost"


def test_a_row_that_the_range_covers_but_the_batch_has_not_is_lost() -> None:
    assert refusal(OracleStream().reading(), batch(ROWS[:2], until=after(ROWS[4]))) == "lost"


def test_the_rest_of_an_aggregated_record_that_is_left_out_is_lost() -> None:
    assert refusal(OracleStream().reading(), batch(ROWS[:3])) == "lost"


def test_a_row_that_comes_twice_in_a_batch_is_duplicated() -> None:
    assert refusal(OracleStream().reading(), batch([ROWS[0], ROWS[0]])) == "duplicated"


def test_a_batch_that_comes_twice_is_duplicated() -> None:
    reading = OracleStream().reading()
    reading.deliver(batch(ROWS[:2]))
    assert refusal(reading, batch(ROWS[:2])) == "duplicated"
    assert refusal(reading, batch(ROWS[1:])) == "duplicated"


def test_a_row_behind_the_range_of_its_batch_would_come_again() -> None:
    assert refusal(OracleStream().reading(), batch(ROWS[:2], until=after(ROWS[0]))) == "duplicated"


def test_rows_that_change_places_are_out_of_order() -> None:
    assert refusal(OracleStream().reading(), batch([ROWS[1], ROWS[0], *ROWS[2:]])) == "out of order"


@pytest.mark.parametrize(
    "altered",
    [
        {"data": b"x"},
        {"partitionKey": "x"},
        {"approximateArrivalTimestamp": 0},
        {"sequenceNumber": "7"},
        {"subSequenceNumber": 7},
    ],
    ids=str,
)
def test_a_row_that_is_another_one_is_altered(altered: dict[str, Any]) -> None:
    assert refusal(OracleStream().reading(), batch(ROWS[:2], **altered)) == "altered"


def test_a_child_before_the_last_row_of_its_parent_is_out_of_order() -> None:
    reading = OracleStream().reading()
    reading.deliver(batch(ROWS[:4]))
    assert refusal(reading, batch(CHILD.rows, of=CHILD)) == "out of order"


def test_a_child_that_an_earlier_run_has_begun_may_go_on_before_its_parent() -> None:
    stream = OracleStream()
    first = stream.reading()
    first.deliver(batch(ROWS))
    first.deliver(batch(CHILD.rows[:1], of=CHILD))
    begun = SplitPosition(Split(CHILD.shard_id, (PARENT.shard_id,)), after(CHILD.rows[0]))
    stream.reading(at(Horizon()), begun).deliver(batch(CHILD.rows[1:], of=CHILD))


def test_what_is_missing_is_counted_except_of_a_broken_shard_and_its_children() -> None:
    reading = OracleStream().reading()
    reading.deliver(batch(ROWS[:2]))
    assert reading.missing(None) == {PARENT.shard_id: 3, CHILD.shard_id: 5}
    assert reading.missing(CHILD.shard_id) == {PARENT.shard_id: 3}
    assert reading.missing(PARENT.shard_id) == {}
    assert reading.generations() == 2


def test_positions_behind_what_was_handed_on_would_lose_it() -> None:
    reading = OracleStream().reading()
    reading.deliver(batch(ROWS[:2]))
    reading.check_stored(positions(at(after(ROWS[1]))))
    with pytest.raises(OracleError, match=r"^lost: the stored position"):
        reading.check_stored(positions(at(after(ROWS[4]))))
    with pytest.raises(OracleError, match=r"^lost: the stored position"):
        reading.check_stored(positions(at(after(ROWS[1]), ended=True)))


def test_a_restart_from_behind_what_was_handed_on_would_lose_it() -> None:
    stream = OracleStream()
    stream.reading().deliver(batch(ROWS[:2]))
    with pytest.raises(OracleError, match=r"^lost: the stored position"):
        stream.reading(at(after(ROWS[4])))


def test_each_run_gets_what_comes_after_its_own_positions_whatever_another_has_got() -> None:
    stream = OracleStream()
    older = stream.reading()
    older.deliver(batch(ROWS[:2]))
    newer = stream.reading(at(after(ROWS[0])))
    assert stream.oracle.replayed == 1
    newer.deliver(batch(ROWS[1:2]))
    older.deliver(batch(ROWS[2:4]))
    assert refusal(older, batch(ROWS[1:2])) == "duplicated"
    assert refusal(newer, batch(ROWS[4:])) == "lost"
    newer.deliver(batch(ROWS[2:]))


def test_positions_that_forget_a_shard_would_lose_it_or_repeat_it() -> None:
    reading = OracleStream().reading(at(Horizon()))
    with pytest.raises(OracleError, match=r"^lost: .* do not name"):
        reading.check_stored(positions())


def test_the_older_of_two_runs_may_store_older_positions_which_only_repeats() -> None:
    stream = OracleStream()
    older, newer = stream.reading(), stream.reading()
    older.deliver(batch(ROWS[:1]))
    newer.deliver(batch(ROWS))
    newer.check_stored(positions(at(after(ROWS[4]))))
    older.check_stored(positions(at(after(ROWS[0]))))
    stream.reading(at(after(ROWS[0]))).deliver(batch(ROWS[1:]))


def test_a_resume_inside_an_aggregated_record_gets_the_rest_of_it() -> None:
    stream = OracleStream()
    stream.reading().deliver(batch(ROWS[:3], until=after(ROWS[2], inside=True)))
    reading = stream.reading(at(after(ROWS[2], inside=True)))
    assert refusal(reading, batch(ROWS[4:])) == "lost"
    reading.deliver(batch(ROWS[3:]))


def test_what_has_expired_is_not_missed_where_a_gap_tells_it() -> None:
    stream = OracleStream()
    reading = stream.reading()
    reading.deliver(batch(ROWS[:1]))
    stream.trim(2)
    stream.run.passed_over[PARENT.shard_id] = PARENT.records[1].sequence
    reported = Gap(after(ROWS[0]), Horizon(), "expired")
    assert refusal(reading, batch(ROWS[2:])) == "lost"
    reading.deliver(batch(ROWS[2:], gaps=(reported,)))
    assert reading.standings[PARENT.shard_id].gaps == 1


def test_what_the_service_still_has_may_not_be_given_up() -> None:
    stream = OracleStream()
    reading = stream.reading()
    stream.trim(1)
    gap = Gap(Horizon(), after(ROWS[1]), "expired")
    assert refusal(reading, batch(ROWS[2:], gaps=(gap,))) == "lost"


def test_whoever_begins_with_the_oldest_record_misses_none_that_had_expired() -> None:
    stream = OracleStream()
    reading = stream.reading()
    stream.trim(2)
    assert refusal(reading, batch(ROWS[2:])) == "lost"
    stream.run.passed_over[PARENT.shard_id] = PARENT.records[1].sequence
    reading.deliver(batch(ROWS[2:]))


def test_what_was_taken_before_it_expired_is_still_expected() -> None:
    stream = OracleStream()
    reading = stream.reading()
    stream.trim(3)
    stream.run.passed_over[PARENT.shard_id] = PARENT.records[2].sequence
    reading.deliver(batch(ROWS[1:2]))
    assert refusal(reading, batch(ROWS[4:])) == "lost"
    reading.deliver(batch(ROWS[2:]))


def test_a_stream_that_begins_anew_owes_nothing_that_came_before() -> None:
    stream = OracleStream()
    stream.reading()
    reading = stream.oracle.begin(positions(at(after(ROWS[1]))), stream.run, anew=True)
    assert refusal(reading, batch(ROWS[:1])) == "duplicated"
    assert reading.missing(None) == {PARENT.shard_id: 3, CHILD.shard_id: 5}


def test_two_runs_may_begin_anew_at_the_same_time() -> None:
    stream = OracleStream()
    older = stream.reading()
    older.deliver(batch(ROWS[:2]))
    newer = stream.oracle.begin(positions(), stream.run, anew=True)
    older.check_stored(positions(at(after(ROWS[1]))))
    newer.deliver(batch(ROWS))


def test_a_run_that_goes_on_in_a_shard_misses_what_expires_meanwhile() -> None:
    stream = OracleStream()
    reading = stream.reading()
    reading.deliver(batch(ROWS[:1]))
    stream.trim(2)
    stream.run.passed_over[PARENT.shard_id] = PARENT.records[1].sequence
    assert refusal(reading, batch(ROWS[2:])) == "lost"
