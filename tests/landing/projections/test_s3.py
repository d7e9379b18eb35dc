"""Tables of a landing in a bucket: its options reach them, and lost answers do no harm."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from fanout.testing.s3_clients import BUCKET
from tests.landing.projections.tables import Delta, Iceberg, Lab, iceberg_catalog
from tests.support.s3 import s3_options
from tests.support.s3_faults import answer_lost, answered, faulty_s3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# pyarrow waits a second before each write for an answer that moto does not give.
@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Lab]:
    """Return a landing by the endpoint of its store."""
    location = f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def lab(endpoint: str) -> Lab:
        options = s3_options(endpoint)
        if request.param == "delta":
            return Lab(location, Delta(location, options), options)
        catalog = iceberg_catalog(tmp_path, warehouse=f"{location}-warehouse")
        given = {
            "s3.endpoint": endpoint,
            "s3.region": options["region"],
            "s3.access-key-id": options["access_key_id"],
            "s3.secret-access-key": options["secret_access_key"],
        }
        return Lab(location, Iceberg(catalog, given), options)

    return lab


async def test_the_options_of_the_landing_reach_the_table(
    at: Callable[[str], Lab], moto: str
) -> None:
    lab = at(moto)
    for _ in range(2):
        told = await lab.land(2)
        assert told.failure == ""
    await lab.check()


async def test_of_two_runs_that_commit_one_entry_one_succeeds(
    at: Callable[[str], Lab], moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = at(moto)
    await lab.land(1)
    add, others = lab.kind.commits.add, list[Any]()

    def late(table: Any, *arguments: Any) -> None:
        if not others:
            others.append(copy.copy(table))
            others[0].newest()  # so that it has looked by itself
            add(others[0], *arguments)
        add(table, *arguments)

    monkeypatch.setattr(lab.kind.commits, "add", late)
    told = await lab.land(1)
    assert others
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()


@pytest.mark.long
@pytest.mark.parametrize("fault", [answer_lost, answered(500, "InternalError")])
async def test_a_put_of_the_table_that_fails_or_loses_its_answer(
    at: Callable[[str], Lab], moto: str, fault: Any
) -> None:
    lab = at(moto)
    await lab.land(1)
    with faulty_s3(moto) as proxy:
        met: list[str] = []

        def of_table(request: Any) -> Any:
            table = "_delta_log" in request.path or "-warehouse" in request.path
            if request.command == "PUT" and table and len(met) < 6 and len(met) % 2 == 0:
                met.append(request.path)
                return fault
            if request.command == "PUT" and table:
                met.append("")
            return None

        proxy.follow(of_table)
        lab.options = s3_options(proxy.endpoint)
        lab.kind.through(proxy.endpoint)
        told = await lab.land(3)
        assert met
        # The client of the table tries such a PUT again.
        assert (told.entries_behind, told.failure) == (0, "")
        lab.kind.through(moto)
    lab.options = s3_options(moto)
    await lab.land()
    await lab.check()
