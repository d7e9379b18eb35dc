from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.demo.environment import check_environment
from fanout.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.demo.environment.find_spec", lambda _name: None)
    with pytest.raises(SetupError, match=r"pip install 'fanout\[kinesis,spark,testing\]'"):
        check_environment()


def test_a_missing_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="install Java 17"):
        check_environment()
