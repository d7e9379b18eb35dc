from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from fanout.demo.options import DemoFailedError, DemoOptions
from fanout.demo.run import run_demo

if TYPE_CHECKING:
    from pathlib import Path

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def test_a_driver_that_ends_by_itself_ends_the_demo_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary_files: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DemoFailedError, match=r"ended by itself(?s:.*)JAVA_GATEWAY_EXITED"):
        run_demo(DemoOptions(), QUIET)
    assert list(temporary_files.iterdir()) == []


def test_a_demo_in_which_nothing_happens_ends(
    monkeypatch: pytest.MonkeyPatch, temporary_files: Path
) -> None:
    monkeypatch.setattr("fanout.demo.conductor._PATIENCE", 0.1)
    with pytest.raises(DemoFailedError, match="nothing happened"):
        run_demo(DemoOptions(), QUIET)
    assert list(temporary_files.iterdir()) == []
