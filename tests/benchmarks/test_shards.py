"""What further shards add is told apart from what the process takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import shards

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_line_through_two_numbers_of_shards_has_the_cost_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cost(work: Callable[[], shards.Cost]) -> shards.Cost:
        _, count = work.args  # type: ignore[attr-defined]  # a partial
        return shards.Cost(1.0 + count, 0.5, 1024 * (10 + 2 * count), 3 + count, 200 + 100 * count)

    monkeypatch.setattr(shards, "run_apart", cost)
    assert shards.run(1, (2, 5)).costs == pytest.approx(
        {
            "shards/opening/each": 1.0,
            "shards/opening/process": 1.0,
            "shards/idle/each": 0.0,
            "shards/idle/process": 0.5,
            "shards/memory/each": 2.0,
            "shards/memory/process": 10.0,
            "shards/sockets/each": 1.0,
            "shards/sockets/process": 3.0,
            "shards/checkpoint/each": 100.0,
            "shards/checkpoint/process": 200.0,
        }
    )


def test_a_real_stream_has_a_socket_for_each_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_BEATS", 0)
    costs = shards.run(1, (2, 6)).costs
    assert costs["shards/sockets/each"] == 1.0
    assert costs["shards/checkpoint/each"] > 50
