from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aiokafka.record.memory_records import MemoryRecords

from fanout.kafka.partitions import Partition
from tests.provers.simulation.kafka.faults import KafkaFault, KafkaFaultKind
from tests.provers.simulation.kafka.log_draws import make_logs
from tests.provers.simulation.kafka.partition_log import KafkaRecord
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.randomness import stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provers.simulation.kafka.partition_log import LogEra, PartitionLog

PARTITION = Partition("t", 0)
SECONDS = 100.0


def log(*faults: KafkaFault, seed: int = 7, batches: int = 30) -> PartitionLog:
    """Make a partition to which some faults happen."""
    logs = make_logs(
        lambda purpose: stream_of(seed, purpose),
        [PARTITION],
        faults,
        batches=batches,
        seconds=SECONDS,
        transactions=True,
        large=False,
    )
    return logs[PARTITION]


def fault(kind: KafkaFaultKind, at: float, amount: int = 0, seconds: float = 0.0) -> KafkaFault:
    return KafkaFault(kind=kind, at=at, partition="t-0", amount=amount, seconds=seconds)


def eras() -> Iterator[LogEra]:
    for seed in range(30):
        for made in replace(draw_kafka_plan(seed), producers=0).logs().values():
            yield from made.eras


def test_the_bytes_of_a_batch_are_what_another_client_reads_as_its_records() -> None:
    for era in eras():
        for stored in era.batches:
            found = MemoryRecords(stored.data).next_batch()
            assert found is not None
            assert (found.base_offset, found.next_offset) == (stored.base, stored.next_offset)
            read = [
                KafkaRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found
            ]
            assert tuple(read if not found.is_control_batch else ()) == stored.records


def test_offsets_and_moments_never_go_back_in_an_era() -> None:
    for era in eras():
        ends = [0, *(stored.next_offset for stored in era.batches)]
        assert all(before <= stored.base for before, stored in zip(ends, era.batches, strict=False))
        assert [s.at for s in era.batches] == sorted(s.at for s in era.batches)


def test_an_open_transaction_holds_the_end_back_until_its_marker_comes() -> None:
    (era,) = log().eras
    transaction = next(one for one in era.transactions if one.began < one.ended)

    assert transaction.last is not None
    before = (transaction.began + transaction.ended) / 2
    assert era.last_stable(before) <= transaction.first < era.high_watermark(before)
    assert era.last_stable(SECONDS) == era.high_watermark(SECONDS)


def test_records_of_aborted_transactions_are_read_by_those_only_who_read_everything() -> None:
    (era,) = log().eras
    aborted = next(one for one in era.transactions if one.aborted)

    assert aborted.last is not None
    committed = era.records(0, aborted.last, committed=True)
    assert aborted.first not in {record.offset for record in committed}
    assert set(committed) < set(era.records(0, aborted.last, committed=False))


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    (era,) = log().eras
    wide = next(s for s in era.batches if s.next_offset - s.base > 2)

    found = era.readable(wide.base + 1, SECONDS, committed=False)
    assert found[0] is wide
    assert not era.readable(era.high_watermark(SECONDS), SECONDS, committed=False)


def test_a_log_that_is_cut_goes_on_with_other_records_and_no_transaction_of_before() -> None:
    old, new = log(fault(KafkaFaultKind.TRUNCATED, 50.0, amount=3)).eras
    cut = new.high_watermark(50.0) - sum(
        stored.next_offset - stored.base for stored in new.batches if stored.at == 50.0
    )

    assert (old.until, new.since) == (50.0, 50.0)
    assert cut < old.high_watermark(49.9)
    assert new.records(0, cut, committed=False) == old.records(0, cut, committed=False)
    assert new.last_stable(50.0) == new.high_watermark(50.0)
    assert log(fault(KafkaFaultKind.TRUNCATED, 50.0, amount=3)).lost(
        old.high_watermark(49.9), 0.0, 60.0
    )


def test_a_topic_that_is_created_anew_is_not_there_for_a_while_and_begins_with_0() -> None:
    made = log(fault(KafkaFaultKind.RECREATED, 40.0, amount=1, seconds=20.0))

    assert made.era(39.9) is made.eras[0]
    assert made.era(50.0) is None
    assert made.lost(5, 41.0, 42.0)
    again = made.era(60.0)
    assert again is made.eras[1]
    assert again.start(60.0) == 0


@pytest.mark.parametrize("left", [0, 3])
def test_what_expires_is_no_more_from_its_moment_on(left: int) -> None:
    (era,) = log(fault(KafkaFaultKind.EXPIRED, 60.0, amount=left)).eras

    assert era.start(59.9) == 0
    assert 0 < era.start(60.0) <= era.high_watermark(60.0)
    made = log(fault(KafkaFaultKind.EXPIRED, 60.0, amount=left))
    assert made.lost(0, 0.0, 70.0)
    assert not made.lost(0, 0.0, 59.9)
