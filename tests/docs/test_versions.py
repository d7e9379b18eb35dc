from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.docs.versions import write_versions

if TYPE_CHECKING:
    from pathlib import Path


def test_the_newest_version_comes_first_and_is_the_first_page(tmp_path: Path) -> None:
    for name in ("0.9", "0.10", "0.2", "assets"):
        (tmp_path / name).mkdir()
    write_versions(tmp_path)
    found = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in found] == ["0.10", "0.9", "0.2"]
    assert [entry["aliases"] for entry in found] == [["latest"], [], []]
    assert 'url=0.10/"' in (tmp_path / "index.html").read_text()
