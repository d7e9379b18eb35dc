from __future__ import annotations

from random import Random

from fanout.kafka.partitions import Partition
from tests.provers.simulation.kafka.cluster import SimCluster
from tests.provers.simulation.kafka.faults import KafkaFault, KafkaFaultKind
from tests.provers.simulation.kafka.log_draws import make_logs
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.randomness import stream_of

PARTITIONS = [Partition("t", number) for number in range(4)]
UNTIL = 100.0


def cluster(*faults: KafkaFault, brokers: int = 3) -> SimCluster:
    logs = make_logs(
        lambda purpose: stream_of(7, purpose),
        PARTITIONS,
        faults,
        batches=3,
        seconds=UNTIL,
        transactions=False,
        large=False,
    )
    return SimCluster(logs, brokers, faults, until=UNTIL, random=Random(7))


def test_listings_say_late_that_a_leader_has_moved() -> None:
    made = cluster(KafkaFault(kind=KafkaFaultKind.LEADER_MOVES, at=10.0, seconds=5.0))
    for partition in PARTITIONS:
        before, after = made.leader(partition, 9.9), made.leader(partition, 10.0)
        assert before != after
        assert made.listed_leader(partition, 14.9) == before
        assert made.listed_leader(partition, 15.0) == after


def test_a_broker_that_dies_leads_nothing_and_knows_nothing_as_it_comes_back() -> None:
    made = cluster(KafkaFault(kind=KafkaFaultKind.BROKER_DIES, at=10.0, seconds=20.0, amount=0))

    assert made.down(1, 10.0)
    assert not made.down(1, 30.0)
    assert made.warming(1, 30.0)
    assert made.died(1, 9.0, 11.0)
    assert not made.died(1, 11.0, 12.0)
    for partition in PARTITIONS:
        assert made.leader(partition, 20.0) in {2, 3}


def test_nobody_leads_while_the_only_broker_is_down() -> None:
    made = cluster(KafkaFault(kind=KafkaFaultKind.BROKER_DIES, at=10.0, seconds=20.0), brokers=1)

    assert [made.leader(PARTITIONS[0], at) for at in (9.0, 15.0, 30.0)] == [1, None, 1]


def test_every_fault_is_over_at_the_end_and_everything_is_led_by_somebody_who_is_up() -> None:
    for seed in range(100):
        plan = draw_kafka_plan(seed)
        made = SimCluster(
            plan.logs(),
            plan.brokers,
            plan.cluster_faults,
            until=plan.seconds,
            random=Random(seed),
        )
        for partition in made.logs:
            leader = made.leader(partition, plan.seconds)
            assert leader is not None
            assert leader == made.listed_leader(partition, plan.seconds)
            assert not made.down(leader, plan.seconds)
            assert made.silent_until(leader, plan.seconds) is None
            assert made.lag(partition, plan.seconds) is None


def test_a_topic_is_unseen_for_its_time_only() -> None:
    made = cluster(KafkaFault(kind=KafkaFaultKind.UNSEEN, at=10.0, seconds=5.0))

    assert [made.is_seen("t", at) for at in (9.9, 10.0, 14.9, 15.0)] == [True, False, False, True]
    assert not made.is_seen("nobody", 0.0)
