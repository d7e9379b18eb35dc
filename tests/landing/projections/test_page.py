"""The examples of docs/tables.md."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from tests.landing.projections.tables import iceberg_catalog
from tests.support.manual_source import ManualSource
from tests.support.pages import DOCS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = (DOCS / "tables.md").read_text(encoding="utf-8")
LAND, DELTA, ICEBERG = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_examples_land_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ManualSource("a", bounded=True)
    source.put(b"one", b"two")
    source.end("a")
    names: dict[str, Any] = {
        "LOCATION": str(tmp_path / "orders"),
        "CATALOG": iceberg_catalog(tmp_path),
        "source": source,
    }
    exec(LAND, names)  # noqa: S102 - the page is ours
    async with asyncio.timeout(60):
        await names["main"]()
    entry, delta, iceberg = capsys.readouterr().out.splitlines()
    assert entry == "1 2"
    assert delta == f"the Delta table file://{tmp_path}/orders/segments 0 "
    assert iceberg == "the Iceberg table db.orders of lake 0 "
    for block in (DELTA, ICEBERG):
        await asyncio.to_thread(exec, block, names)
    count, *frame, rows = capsys.readouterr().out.splitlines()
    assert (count, rows) == ("2", "2")
    assert any("one" in line for line in frame)
