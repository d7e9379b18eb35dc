from __future__ import annotations

import json

import pytest

from fanout.errors import OptionError
from fanout.testing.faults import (
    CorruptFrame,
    CutConnection,
    CutPoll,
    EmptyPoll,
    EndEarly,
    Fault,
    GoAway,
    GoAwayAtCall,
    HalfAnEnd,
    IgnoreCall,
    IgnoreSubscribe,
    RaiseInStream,
    RefuseCall,
    RefuseSubscribe,
    RevokeKey,
    Stall,
    fault_from_json,
    fault_to_json,
)
from fanout.testing.kinesis.server_state import FaultPlan

EVERY_KIND: list[Fault] = [
    CorruptFrame(checksum="prelude"),
    CutConnection(shard="shardId-000000000001", event=7),
    CutPoll(call=3),
    EmptyPoll(times=2),
    EndEarly(event=None, times=3),
    GoAway(event=3),
    GoAwayAtCall(action="PutRecords", call=3),
    HalfAnEnd(sign="children"),
    IgnoreCall(action="GetRecords"),
    IgnoreSubscribe(call=2),
    RaiseInStream(code="KMSThrottlingException", message="slow down"),
    RefuseCall(action="ListShards", code="LimitExceededException", times=2),
    RefuseSubscribe(status=503, code="ServiceUnavailable", html=True),
    RevokeKey(access_key="AKIDEXAMPLE", code="ExpiredTokenException"),
    Stall(seconds=0.5),
]


@pytest.mark.parametrize("fault", EVERY_KIND, ids=lambda fault: type(fault).__name__)
def test_a_fault_survives_json(fault: Fault) -> None:
    assert fault_from_json(json.loads(json.dumps(fault_to_json(fault)))) == fault


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"kind": "Explode"},
        {"kind": ["EndEarly"]},
        {"kind": "EndEarly", "evnt": 3},
        {"kind": "EndEarly", "event": "3"},
        {"kind": "CorruptFrame", "checksum": "both"},
    ],
    ids=["nothing", "kind", "no name", "field", "type", "choice"],
)
def test_a_document_that_is_no_fault_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        fault_from_json(document)


def test_an_event_is_counted_from_1() -> None:
    with pytest.raises(OptionError, match="event must be at least 1"):
        EndEarly(event=0)


def test_a_call_is_counted_from_1() -> None:
    with pytest.raises(OptionError, match="call must be at least 1"):
        RefuseSubscribe(call=0)
    with pytest.raises(OptionError, match="times must be at least 1"):
        RefuseCall(action="ListShards", times=0)


def test_a_fault_strikes_once() -> None:
    plan = FaultPlan()
    plan.add(EndEarly(event=2))
    assert [plan.at_event("a", 2), plan.at_event("a", 2)] == [EndEarly(event=2), None]


def test_a_fault_strikes_as_often_as_it_says() -> None:
    plan = FaultPlan()
    fault = RefuseSubscribe(times=2)
    plan.add(fault)
    assert [plan.at_subscribe("a") for _ in range(3)] == [fault, fault, None]


def test_a_fault_spares_other_shards() -> None:
    plan = FaultPlan()
    plan.add(EndEarly(shard="a"))
    assert plan.at_event("b", 1) is None


def test_a_fault_of_no_event_strikes_at_the_next_one() -> None:
    plan = FaultPlan()
    plan.add(EndEarly(event=None))
    assert [plan.at_event("a", 7), plan.at_event("a", 8)] == [EndEarly(event=None), None]


def test_a_fault_waits_for_its_call() -> None:
    plan = FaultPlan()
    fault = IgnoreSubscribe(call=2)
    plan.add(fault)
    assert [plan.at_subscribe("a"), plan.at_subscribe("a")] == [None, fault]


def test_a_refusal_is_of_one_action_and_waits_for_its_call() -> None:
    plan = FaultPlan()
    fault = RefuseCall(action="ListShards", call=2)
    plan.add(fault)
    actions = ["ListShards", "GetRecords", "ListShards", "ListShards"]
    assert [plan.at_call(action) for action in actions] == [None, None, fault, None]


def test_faults_that_struck_are_counted_by_kind() -> None:
    plan = FaultPlan()
    plan.add(EndEarly())
    plan.add(RefuseSubscribe())
    plan.at_event("a", 1)
    assert plan.struck() == {"EndEarly": 1}
