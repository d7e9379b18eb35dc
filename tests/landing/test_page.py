"""The examples of docs/landing.md, and its table of requests."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fanout
from fanout.landers.land import land
from fanout.landing import lander
from fanout.testing.s3_clients import BUCKET
from tests.support.manual_source import ManualSource
from tests.support.s3 import s3_options
from tests.support.s3_faults import faulty_s3

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "landing.md").read_text(encoding="utf-8")
LAND, _, _, FOLLOW, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def documented(when: str) -> list[int]:
    row = re.search(rf"^\| {when} \| (\d+) \| (\d+) \| (\d+) \| (\d+)", PAGE, re.MULTILINE)
    assert row is not None
    return [int(number) for number in row.groups()]


async def test_the_table_has_the_requests_of_a_run(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lander, "_CLAIM_SECONDS", 3600.0)  # the table has its requests apart
    asked: Counter[str] = Counter()

    def count(request: Any) -> None:
        asked["LIST" if "list-type=2" in request.path else request.command] += 1

    def since_then() -> list[int]:
        assert asked.keys() <= {"PUT", "GET", "LIST", "DELETE"}
        found = [asked[kind] for kind in ("PUT", "GET", "LIST", "DELETE")]
        asked.clear()
        return found

    source, location = ManualSource(), f"s3://{BUCKET}/{uuid.uuid4().hex}"
    with faulty_s3(moto) as proxy:
        proxy.follow(count)
        options = s3_options(proxy.endpoint)
        async with fanout.land(source, location, max_wait=0.0, storage_options=options) as landing:
            assert since_then() == documented("a run starts")
            source.put(b"one")
            await anext(landing)
            assert since_then() == documented("an entry")


async def test_the_examples_land_and_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ManualSource()
    source.put(b"one", b"two")
    names: dict[str, Any] = {"LOCATION": str(tmp_path / "orders")}
    exec(LAND, names)  # noqa: S102 - the page is ours
    names["source"] = source
    async with asyncio.TaskGroup() as tasks:
        with monkeypatch.context() as patch:
            patch.setattr(fanout, "land", _quickly)
            example = tasks.create_task(names["main"]())
            async with asyncio.timeout(20):
                while "run-000001" not in (shown := capsys.readouterr().out):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert re.match(r"1 2 \('.*/orders/segments/run-000001-00000001.parquet',\)", shown)
        exec(FOLLOW, names)  # noqa: S102 - the page is ours
        following = tasks.create_task(names["follow"](None))
        async with asyncio.timeout(20):
            while capsys.readouterr().out != "2\n":  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
        following.cancel()
        example.cancel()


def _quickly(source: ManualSource, location: str, **options: Any) -> Any:
    return land(source, location, **options | {"max_wait": 0.0})
