"""Tables in a REST catalog, which loses answers, commits late, and refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from tests.landing.projections.tables import Iceberg, Lab, iceberg_catalog
from tests.support.rest_catalog import RestCatalog, rest_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rest_catalog import Fault


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    with rest_catalog(iceberg_catalog(tmp_path)) as served:
        yield served


@pytest.fixture
def lab(catalog: RestCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("fanout.landing.projections.table_projection._RETRY_SECONDS", 0.0)
    return Lab(str(tmp_path / "landing"), Iceberg({"type": "rest", "uri": catalog.uri}), None)


async def test_a_table_in_a_rest_catalog(lab: Lab) -> None:
    for _ in range(2):
        told = await lab.land(2)
        assert (told.entries_behind, told.failure) == (0, "")
        await lab.check()


@pytest.mark.parametrize("fault", ["lost", "late", "refused"])
async def test_answers_of_the_catalog_are_lost(
    lab: Lab, catalog: RestCatalog, fault: Fault
) -> None:
    await lab.land(1)
    catalog.faults += [fault, "", "", fault, fault]
    told = await lab.land(5)
    assert not catalog.faults
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()
    for commit in catalog.late:
        with pytest.raises(CommitFailedException):
            await asyncio.to_thread(commit)
    await lab.check()
    await lab.land(1)
    await lab.check()


async def test_a_commit_arrives_before_it_is_made_again(lab: Lab, catalog: RestCatalog) -> None:
    await lab.land(1)
    commit = catalog._commit

    def late_first(given: Any, *table: str) -> Any:
        while catalog.late:
            catalog.late.pop()()
        return commit(given, *table)

    catalog._commit = late_first  # type: ignore[method-assign]
    catalog.faults += ["late"]
    told = await lab.land(3)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()
