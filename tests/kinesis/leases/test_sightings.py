"""What looks at a lease table show."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import ServiceError
from fanout.kinesis.leases.sightings import Sightings

if TYPE_CHECKING:
    from fanout.kinesis.leases.lease import Item

FAILOVER = 10.0


def lease(id_: str, counter: int = 1, **attributes: Any) -> Item:
    more = {"checkpoint": "TRIM_HORIZON", "entityType": "LEASE", **attributes}
    return MappingProxyType({"leaseKey": id_, "leaseCounter": counter, **more})


def worker(id_: str, beat: int) -> Item:
    return MappingProxyType(
        {"leaseKey": id_, "entityType": "WORKER_METRIC_STATS", "fanoutBeat": beat}
    )


ENDED = lease("a", checkpoint="SHARD_END", childShardIds=frozenset({"b"}))


def test_a_lease_whose_shard_is_read_stays_for_a_while() -> None:
    sightings = Sightings("me", FAILOVER)
    for now in (0.0, 299.0):
        sightings.see([ENDED, lease("b", checkpoint="7")], now)
        assert list(sightings.cleanable) == []
    sightings.see([ENDED, lease("b")], 301.0)
    assert list(sightings.cleanable) == []  # the shard behind it has not begun
    sightings.see([ENDED, lease("b", checkpoint="7")], 302.0)
    assert list(sightings.cleanable) == ["a"]


def test_a_child_of_two_waits_for_a_parent_that_has_no_lease_yet() -> None:
    sightings = Sightings("me", FAILOVER)
    child = lease("e", parentShardId=frozenset({"b", "d"}))
    sightings.lineage = {"b": (), "c": (), "d": ("c",), "e": ("b", "d")}
    sightings.see([child, lease("c"), lease("b", checkpoint="SHARD_END")], 0.0)
    assert not sightings.is_ready(sightings.leases["e"])
    sightings.see([child, lease("c", checkpoint="SHARD_END")], 1.0)
    assert sightings.is_ready(sightings.leases["e"])


@pytest.mark.parametrize(("seconds", "taken"), [(9.0, []), (11.0, ["a"])])
def test_a_lease_is_taken_when_it_has_not_moved_for_the_failover_time(
    seconds: float, taken: list[str]
) -> None:
    sightings = Sightings("me", FAILOVER)
    held = lease("a", leaseOwner="other")
    sightings.see([held, worker("other", 1)], 0.0)
    sightings.see([held, worker("other", 1)], seconds / 2)
    sightings.see([held, worker("other", 1)], seconds)
    take, ask = sightings.wanted([])
    assert [each.shard_id for each in take] == taken
    assert ask == []


def test_only_leases_that_an_older_kcl_has_written_refuse_it() -> None:
    def old(counter: int) -> Item:
        plain = dict(lease("a", counter, leaseOwner="kcl"))
        del plain["entityType"]
        return MappingProxyType(plain)

    sightings = Sightings("me", FAILOVER)
    for now in (0.0, 1.0):
        # A member that is not seen yet has taken one of them meanwhile.
        sightings.see([old(1), lease("b", int(now) + 1, leaseOwner="new")], now)
        sightings.check("orders", "orders-app")
    sightings.see([old(2)], 2.0)
    with pytest.raises(ServiceError, match="kcl renews leases"):
        sightings.check("orders", "orders-app")


def test_after_a_time_without_sight_nobody_is_taken_for_dead_at_once() -> None:
    sightings = Sightings("me", FAILOVER)
    items = [lease("a"), lease("b"), worker("other", 1)]
    sightings.see(items, 0.0)
    sightings.see(items, 60.0)
    take, _ = sightings.wanted([])
    assert len(take) == 1  # the other one is for the other member
    sightings.see(items, 65.0)
    sightings.see(items, 71.0)
    take, _ = sightings.wanted([])
    assert len(take) == 2


def test_what_a_process_of_the_same_name_had_has_to_expire() -> None:
    sightings = Sightings("me", FAILOVER)
    former = lease("a", leaseOwner="me")
    sightings.see([former], 0.0)
    assert list(sightings.assigned([])) == []
    sightings.see([former, lease("b", leaseOwner="me")], 1.0)
    assert [each.shard_id for each in sightings.assigned([])] == ["b"]
    sightings.see([former], 8.0)
    sightings.see([former], 12.0)
    assert [each.shard_id for each in sightings.wanted([])[0]] == ["a"]
