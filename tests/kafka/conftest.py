from __future__ import annotations

import pytest


@pytest.fixture
def quick_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a loss for certain within a moment, and do not wait long for people."""
    monkeypatch.setattr("fanout.kafka.losses._SURE_AFTER", 0.1)
    monkeypatch.setattr("fanout.kafka.options._SLOW", 0.1)
    monkeypatch.setattr("fanout.kafka.losses._APART", 0.02)
