"""A short run of the soak: its job, its figures and its verdict."""

from __future__ import annotations

import pytest

from benchmarks.growth import BLOCKS
from benchmarks.soak import LIMITS, evaluate, soak


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.spark
def test_the_job_reads_both_services_and_its_figures_can_be_judged() -> None:
    samples = soak(0.4, sample_seconds=1.0)
    assert len(samples) > BLOCKS
    assert samples[-1]["kinesis"] > samples[0]["kinesis"]
    assert samples[-1]["kafka"] > samples[0]["kafka"]
    grown = evaluate(samples)
    assert LIMITS.keys() <= grown.keys()
    assert all(each.level > 0 for each in grown.values())
