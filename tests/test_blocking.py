from __future__ import annotations

import time
from random import Random

import pytest
from blockbuster import BlockingError

from fanout.core.backoff import Backoff, FullJitter
from fanout.testing.virtual_time.loop import simulate


class Sleepy(Random):
    def uniform(self, a: float, b: float) -> float:
        time.sleep(0)
        return a + b


def test_a_call_that_blocks_the_loop_fails_the_test() -> None:
    async def main() -> None:
        with pytest.raises(BlockingError, match=r"time\.sleep"):
            FullJitter(Backoff(), Sleepy()).delay(0)

    simulate(main)


def test_the_same_call_without_a_loop_may_block() -> None:
    assert FullJitter(Backoff(), Sleepy()).delay(0) == 1.0
