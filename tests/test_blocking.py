from __future__ import annotations

import time
from random import Random

import pytest
from blockbuster import BlockingError

from fanout.core.backoff import Backoff, FullJitter
from tests.support.virtual_time import in_virtual_time


class Sleepy(Random):
    def uniform(self, a: float, b: float) -> float:
        time.sleep(0)
        return a + b


@in_virtual_time
async def test_a_call_that_blocks_the_loop_fails_the_test() -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        FullJitter(Backoff(), Sleepy()).delay(0)


def test_the_same_call_without_a_loop_may_block() -> None:
    assert FullJitter(Backoff(), Sleepy()).delay(0) == 1.0
