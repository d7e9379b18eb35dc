from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace

import pytest

from fanout.errors import OptionError
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.plans import read_plan

# As the first version wrote it: later versions have to read it with the same meaning.
FIRST = """{
  "seed": 7, "schedule": "fifo", "mode": "efo", "start": "TRIM_HORIZON", "shards": 2, "records": 5,
  "reshards": 1, "large": false, "seconds": 600.0, "heartbeat": 30.0, "reading": "drain",
  "checkpoint_every": 1, "broken": null,
  "faults": [{"kind": "stall", "at": 1.5, "shard": null, "seconds": 30.0, "lasts": 0.0, "code": ""}]
}"""


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(FIRST), **changes})


def test_a_plan_of_the_first_version_is_read_and_what_it_does_not_say_is_as_it_was_then() -> None:
    plan = read_plan(FIRST)

    stored = json.loads(FIRST)
    added = {each.name: each.default for each in fields(KinesisPlan) if each.name not in stored}
    assert MISSING not in added.values()
    assert json.loads(plan.to_json()) == {**stored, **added}


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_survives_json(seed: int) -> None:
    plan = draw_kinesis_plan(seed)

    assert read_plan(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a plan"),
        ("[]", "not a plan"),
        ("{}", "not a plan of a simulation: .* `seed`"),
        (b"\xff", "not a plan"),
        ("[" * 100_000, "not a plan"),
        (changed(seed="7"), "not a plan of a simulation: .*seed"),
        (changed(schedule="lifo"), "not a plan of a simulation: .*schedule"),
        (changed(faults=[{"kind": "earthquake", "at": 1}]), "not a plan .*earthquake"),
        (changed(shards=0), "not a plan .*shards must be more than 0"),
        (changed(seconds=-1), "not a plan .*seconds must be more than 0"),
        (changed(reshards=-1), "not a plan .*reshards must not be negative"),
        (changed(weather="bad"), "of a newer version of fanout, or misspelt: 'weather'"),
        (changed(faults=[{"kind": "stall", "at": 1, "seconsd": 3}]), "misspelt: 'seconsd'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_plan_is_refused(text: str | bytes, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        read_plan(text)


def test_faults_that_were_written_by_hand_need_no_order() -> None:
    early, late = (KinesisFault(kind=KinesisFaultKind.STALL, at=at) for at in (1.0, 2.0))
    plan = replace(draw_kinesis_plan(0), faults=(late, early))

    assert read_plan(plan.to_json()).faults == (early, late)
