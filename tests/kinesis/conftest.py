"""A source on the embedded Kinesis, paced for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.kinesis.reading import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def rules() -> KinesisRules:
    """The figures of the server; parametrize `rules` for others."""
    return KinesisRules.fast()


@pytest.fixture
def shards() -> int:
    """The shards of the stream at first; parametrize `shards` for more."""
    return 1


@pytest.fixture
def stream(
    rules: KinesisRules,
    shards: int,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Stream]:
    """A stream on an embedded Kinesis."""
    # As often as the server allows; the service's own figures are the library's, too.
    monkeypatch.setattr("fanout.kinesis.options._FLOOR", max(rules.call_interval, 0.01))
    monkeypatch.setattr("fanout.kinesis.options._SPACING", rules.takeover_after)
    monkeypatch.setattr("fanout.core.source_options._SLOW", 0.05)
    if not rules.polls_per_second:
        monkeypatch.setattr("fanout.kinesis.options.CALL_INTERVAL", 0.01)
        monkeypatch.setattr("fanout.kinesis.reading.rate_limit.CALL_INTERVAL", 0.01)
        monkeypatch.setattr("fanout.kinesis.reading.rate_limit.IDLE_INTERVAL", 0.02)
    with KinesisServer(rules) as server:
        yield Stream(server, shards=shards)
