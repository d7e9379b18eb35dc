"""`fanout land --table`, killed before and after each step of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.landing.projections.tables import Delta, Iceberg, iceberg_catalog, numbers
from tests.landing.test_killed_lander import Lander
from tests.landing.test_killed_lander import kinesis as kinesis  # noqa: PLC0414 - a fixture
from tests.support.commands import ENVIRONMENT
from tests.support.doomed import Kill

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer
    from tests.landing.projections.tables import Kind

pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]

STEPS = {
    "delta": ("delta:_Delta.newest", "delta:_Delta.add"),
    "iceberg": ("iceberg:_Iceberg.newest", "iceberg:_Iceberg.add"),
}


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("by", [(), ("--partition-by", "partitionKey")])
def test_kills_at_each_step_of_a_table_lose_and_repeat_nothing(
    kinesis: KinesisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    by: tuple[str, ...],
) -> None:
    table: Kind = Delta(str(tmp_path / "to"), None)
    option = "delta"
    if kind == "iceberg":
        table, option = Iceberg(iceberg_catalog(tmp_path)), "iceberg:lab/db.orders"
        for name, value in iceberg_catalog(tmp_path).items():
            monkeypatch.setitem(ENVIRONMENT, f"PYICEBERG_CATALOG__LAB__{name.upper()}", value)
    lander = Lander(kinesis, str(tmp_path / "to"), None, "--table", option, *by)
    kills = 0
    for step in STEPS[kind]:
        for when in ("before", "after"):
            for call in range(1, 5):
                lander.put()
                where = f"fanout.landing.projections.{step}"
                kills += lander.is_killed(Kill(where, when, call))
                lander.check()
    assert kills > 10
    lander.put()
    lander.is_killed(Kill("fanout.landing.projections.delta:_Delta.add", "before", 1000))
    lander.check_all()
    assert numbers(table) == [*range(lander.records)]
