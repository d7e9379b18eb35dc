"""Check the frames of simulated producers of a shuffle, and the watermarks expected from them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pytest
from aiokafka.record.memory_records import MemoryRecords

from fanout.kafka.partitions import Partition
from fanout.kafka.shuffle.frames import (
    CONTROL,
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
    decode_control,
)
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kafka.partition_log import KafkaRecord, ProducerFrames, StoredBatch
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kafka.shuffle.expected_watermark import ExpectedWatermark
from tests.support.kafka.shuffle_decoding import read_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.shuffle.frames import ControlFrame
    from tests.provers.simulation.kafka.partition_log import LogEra
    from tests.provers.simulation.kafka.plan import KafkaPlan

Frame: TypeAlias = "ControlFrame | int"


def plans() -> Iterator[KafkaPlan]:
    drawn = (draw_kafka_plan(seed) for seed in count())
    return islice((plan for plan in drawn if plan.producers), 30)


def eras(plan: KafkaPlan) -> Iterator[LogEra]:
    for log in plan.logs().values():
        yield from log.eras


def test_what_producers_write_are_the_frames_that_a_reader_decodes() -> None:
    kinds: Counter[type] = Counter()
    for era in (era for plan in plans() for era in eras(plan)):
        for stored in era.batches:
            found = MemoryRecords(stored.data).next_batch()
            assert found is not None
            if found.is_control_batch:
                continue
            rows = list(found)
            read = read_answer(stored.data)
            records, controls = [], []
            for row, value, time, control in zip(
                rows,
                read["value"].to_pylist(),
                read["eventTime"].cast(pa.int64()).to_pylist(),
                read[CONTROL].to_pylist(),
                strict=True,
            ):
                if control is not None:
                    controls.append((row.offset - stored.base, decode_control(control)))
                    assert row.key is None
                    continue
                happened = None if time is None else time // 1000
                records.append(KafkaRecord(row.offset, row.timestamp, row.key, value, (), happened))
            assert tuple(records) == stored.records
            assert tuple(controls) == (() if stored.frames is None else stored.frames.controls)
            kinds.update(type(control) for _, control in controls)

    assert kinds.keys() == {HelloFrame, WatermarkFrame, IdleFrame, EndFrame}


def test_no_producer_writes_at_or_below_its_own_watermark_or_before_its_hello() -> None:
    below = 0
    for plan in plans():
        for era in eras(plan.without_faults()):
            watermarks: dict[tuple[int, int], int] = {}
            for stored, sent in era.spoken(0, era.high_watermark(plan.seconds)):
                who = sent.generation, sent.producer
                if who not in watermarks:
                    assert isinstance(sent.controls[0][1], HelloFrame)
                frames = [(stored.base + place, each) for place, each in sent.controls]
                for _, frame in sorted([*frames, *((r.offset, r) for r in stored.records)]):
                    before = watermarks.setdefault(who, -1)
                    if isinstance(frame, WatermarkFrame):
                        watermarks[who] = max(before, frame.millis)
                    elif isinstance(frame, KafkaRecord) and frame.event_time is not None:
                        assert sent.repeated or frame.event_time > before
                        below += frame.event_time <= max(watermarks.values())
    assert below > 100, "watermarks of others have to be in the way"


class Log:
    """The log of a partition, written by hand, and the watermark that its reader has to have."""

    def __init__(self, *, timeout: float = math.inf) -> None:
        self.now = 0.0
        self.expected = ExpectedWatermark(Partition("t", 0), 0, 0, Counter(), timeout)
        self.expected.report(None, 0.0)

    def write(
        self, *frames: Frame, producer: int = 0, generation: int = 1, repeated: bool = False
    ) -> Log:
        """Let a producer write: numbers are event times."""
        base = self.expected.offset
        records = [
            KafkaRecord(base + place, 0, b"k", b"v", (), frame)
            for place, frame in enumerate(frames)
            if isinstance(frame, int)
        ]
        controls = tuple(
            (place, frame) for place, frame in enumerate(frames) if not isinstance(frame, int)
        )
        end = base + len(frames)
        sent = ProducerFrames(generation, producer, controls, repeated)
        stored = StoredBatch(base, end, self.now, b"", tuple(records), None, sent)
        self.expected.receive([(stored, sent)], end, self.now)
        return self

    def report(self, watermark: int | None) -> Log:
        """Let the reader report a watermark."""
        self.expected.report(watermark, self.now)
        return self


def hello(producer: int = 0, generation: int = 1, of: int = 2) -> HelloFrame:
    return HelloFrame(producer, generation, of, 1)


def at(millis: int, producer: int = 0, generation: int = 1) -> WatermarkFrame:
    return WatermarkFrame(producer, generation, millis)


def begun(*, timeout: float = math.inf) -> Log:
    """Return a log with two producers at 10 and 5, of which the reader has reported 5."""
    log = Log(timeout=timeout).write(hello(), at(10)).report(None)
    return log.write(hello(1), at(5, 1), producer=1).report(5)


def test_a_record_that_was_excluded_is_late() -> None:
    begun().write(11).write(6, producer=1)
    with pytest.raises(OracleError, match="late: producer 1 of generation 1 of t-0"):
        begun().report(10).write(10, producer=1)


def test_a_producer_that_has_not_spoken_is_bound_by_what_is_told_without_it() -> None:
    log = Log().write(hello(), at(10)).report(None).report(10)

    with pytest.raises(OracleError, match="late: producer 1"):
        log.write(hello(1), 7, producer=1)


def test_a_producer_is_not_bound_by_what_was_told_while_it_was_away() -> None:
    log = begun().write(IdleFrame(1, 1), producer=1).report(10).write(at(5, 1), 6, producer=1)
    assert log.expected.moments["a record comes behind a watermark that does not bind its producer"]

    log.report(10).write(at(20)).report(20)
    with pytest.raises(OracleError, match="the watermark was 20 before"):
        log.write(20, producer=1)


def test_what_was_told_before_a_producer_went_away_binds_it_as_it_is_back() -> None:
    log = begun().write(EndFrame(1, 1), producer=1).report(10)

    with pytest.raises(OracleError, match="the watermark was 5 before"):
        log.write(at(5, 1), 5, producer=1)


def test_a_watermark_binds_neither_the_generations_before_nor_those_after() -> None:
    log = begun().write(hello(0, 2, 1), 3, producer=0, generation=2).report(5)
    log.write(2, producer=1)
    log.write(at(40, 0, 2), generation=2).report(40)

    log.write(2, producer=1)
    with pytest.raises(OracleError, match="generation 2"):
        log.write(40, generation=2)


def test_what_is_written_twice_may_be_late() -> None:
    begun().report(10).write(3, producer=1, repeated=True)


def test_a_producer_that_is_silent_for_too_long_is_not_bound_until_it_speaks() -> None:
    log = begun(timeout=10.0)
    log.now = 9.0
    assert log.report(5).expected.silent(log.now) == set()
    log.now = 10.0
    assert log.write(at(20)).expected.silent(log.now) == {1}
    log.report(20).write(at(6, 1), 7, producer=1).report(20)
    assert log.expected.due_without(10.0) is None
    assert log.expected.due_without(9.0) == 6

    with pytest.raises(OracleError, match="the watermark was 30 before"):
        log.write(at(30)).report(30).write(30, producer=1)


def test_a_process_that_goes_on_knows_who_was_silent_and_waits_for_others_anew() -> None:
    log = begun(timeout=10.0)
    log.now = 5.0
    log.write(hello())
    log.now = 12.0
    log.expected.resume(log.now)

    assert log.expected.silent(21.0) == set()
    with pytest.raises(OracleError, match="late: producer 0"):
        log.report(40).write(6, producer=1).write(40)


def test_a_log_that_begins_anew_has_nobody_who_is_bound() -> None:
    log = begun()
    log.expected.forget(0, 1)

    log.write(1).write(hello(), 2)


@pytest.mark.parametrize("watermark", [None, 4])
def test_a_watermark_that_goes_back_is_wrong(watermark: int | None) -> None:
    with pytest.raises(OracleError, match=f"went back: that of t-0 was 5, and is {watermark} at 4"):
        begun().report(watermark)


def test_a_watermark_is_due_as_soon_as_everybody_has_spoken() -> None:
    log = Log()
    assert log.expected.due is None
    assert log.write(hello(), at(10)).expected.due is None
    assert log.write(hello(1), producer=1).expected.due is None
    assert log.write(at(5, 1), at(3, 1), producer=1).expected.due == 5
    assert log.write(IdleFrame(1, 1), producer=1).expected.due == 10
    assert log.write(IdleFrame(0, 1)).expected.due is None
    assert log.write(hello(0, 2), at(50, 0, 2), generation=2).expected.due is None
    assert log.write(at(60)).expected.due is None


def test_what_a_generation_says_that_was_superseded_counts_for_nothing() -> None:
    log = begun().write(hello(0, 2, 1), at(7, 0, 2), generation=2)

    assert log.write(at(50), IdleFrame(0, 1), at(60, 1), producer=1).expected.due == 7


def test_a_partition_has_ended_where_all_that_were_announced_have() -> None:
    log = begun().write(EndFrame(1, 1), producer=1)
    assert not log.expected.ended
    assert log.write(EndFrame(0, 1)).expected.ended
    assert not log.write(IdleFrame(0, 1)).expected.ended
