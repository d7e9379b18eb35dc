"""Tables in a REST catalog, which loses answers, commits late, and refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from tests.landing.projections.tables import Iceberg, Lab, iceberg_catalog
from tests.support.rest_catalog import RestCatalog, rest_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rest_catalog import Fault


@pytest.fixture(scope="module")
def of_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.support.java_rest_catalog import java_rest_catalog  # noqa: PLC0415 - as s3mock

    with java_rest_catalog(tmp_path_factory.mktemp("warehouse").as_uri()) as uri:
        yield uri


@pytest.fixture(params=["sqlite", pytest.param("java", marks=pytest.mark.prove)])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RestCatalog]:
    if request.param == "sqlite":
        behind = iceberg_catalog(tmp_path)
    else:
        behind = {"type": "rest", "uri": request.getfixturevalue("of_java")}
    with rest_catalog(behind) as served:
        yield served
    if request.param == "java":
        load_catalog("java", **behind).drop_table("db.orders")


@pytest.fixture
def lab(catalog: RestCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("fanout.landing.projections.table_projection._RETRY_SECONDS", 0.0)
    return Lab(str(tmp_path / "landing"), Iceberg({"type": "rest", "uri": catalog.uri}), None)


async def test_a_table_in_a_rest_catalog(lab: Lab) -> None:
    for _ in range(2):
        told = await lab.land(2)
        assert (told.entries_behind, told.failure) == (0, "")
        await lab.check()


@pytest.mark.prove
async def test_a_table_in_a_rest_catalog_of_java(of_java: str, tmp_path: Path) -> None:
    lab = Lab(str(tmp_path / "landing"), Iceberg({"type": "rest", "uri": of_java}), None)
    for _ in range(2):
        told = await lab.land(2)
        assert (told.entries_behind, told.failure) == (0, "")
        await lab.check()
    await asyncio.to_thread(lab.kind.drop)


@pytest.mark.parametrize(
    "fault",
    ["lost", *(pytest.param(fault, marks=pytest.mark.long) for fault in ("late", "refused"))],
)
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
