from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import OptionError
from tests.support.scripted_source import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = Backoff(base=1.0, cap=30.0)


def draws(failures: int, number: int = 20_000) -> list[float]:
    jitter = FullJitter(OPTIONS, seeded())
    return [jitter.delay(failures) for _ in range(number)]


@pytest.mark.parametrize(("failures", "ceiling"), [(0, 1), (1, 2), (4, 16), (5, 30), (5000, 30)])
def test_a_delay_is_uniform_from_zero_to_the_ceiling(failures: int, ceiling: float) -> None:
    delays = sorted(draws(failures))
    assert delays[0] < 0.01 * ceiling
    assert 0.99 * ceiling < delays[-1] <= ceiling
    assert statistics.fmean(delays) == pytest.approx(ceiling / 2, rel=0.02)
    # Kolmogorov-Smirnov: 1.63 / sqrt(n) is the distance that 1 % of uniform samples exceed.
    distance = max(abs(d / ceiling - i / len(delays)) for i, d in enumerate(delays))
    assert distance < 1.63 / math.sqrt(len(delays))


def test_clients_that_failed_together_come_back_apart() -> None:
    per_second = statistics.multimode(int(delay) for delay in draws(5, 500))
    most = sum(int(delay) == per_second[0] for delay in draws(5, 500))
    assert most < 0.1 * 500


def test_the_same_seed_gives_the_same_delays() -> None:
    assert draws(3, 10) == draws(3, 10)


@given(st.floats(0.001, 60), st.floats(1, 1000), st.floats(1, 10), st.integers(0, 10**6))
def test_no_delay_is_beyond_the_cap(
    base: float, factor: float, power: float, failures: int
) -> None:
    options = Backoff(base=base, cap=base * factor, power=power)
    assert 0 <= FullJitter(options, seeded()).delay(failures) <= options.cap


@pytest.mark.parametrize(
    "options",
    [
        {"base": 0.0},
        {"base": -1.0},
        {"base": 31.0},
        {"base": math.nan},
        {"cap": math.inf},
        {"cap": math.nan},
        {"power": 0.5},
        {"power": math.inf},
        {"power": math.nan},
        {"base": "1"},
    ],
)
def test_numbers_that_make_no_growing_wait_are_refused(options: Mapping[str, float]) -> None:
    with pytest.raises(OptionError):
        Backoff(**{"base": 1.0, "cap": 30.0, **options})


def test_a_refusal_names_both_numbers() -> None:
    with pytest.raises(OptionError, match=r"base=5 and cap=4 must satisfy 0 < base <= cap"):
        Backoff(base=5, cap=4)


def test_tenacity_waits_by_the_same_rule() -> None:
    waits: list[float] = []

    def fail() -> None:
        raise OSError

    retrying = tenacity.Retrying(
        wait=FullJitter(OPTIONS, seeded()), stop=tenacity.stop_after_attempt(4), sleep=waits.append
    )
    with pytest.raises(tenacity.RetryError):
        retrying(fail)
    jitter = FullJitter(OPTIONS, seeded())
    assert waits == [jitter.delay(0), jitter.delay(1), jitter.delay(2)]
