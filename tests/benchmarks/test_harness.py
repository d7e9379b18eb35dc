from __future__ import annotations

from functools import partial

from benchmarks.harness import median_seconds, peak_rss_bytes


def test_contenders_take_turns_after_one_run_each_to_warm_up() -> None:
    runs: list[str] = []
    contenders = {name: partial(runs.append, name) for name in ("us", "peer")}
    seconds = median_seconds("both", contenders, rounds=3)
    assert runs == ["us", "peer"] * 4
    assert set(seconds) == {"us", "peer"}


def test_peak_memory_is_that_of_the_contender_alone() -> None:
    ours = bytearray(b"x" * (128 << 20))
    assert peak_rss_bytes(partial(bytes, 1)) < len(ours)


def test_peak_memory_counts_what_was_freed_again() -> None:
    assert peak_rss_bytes(partial(bytearray, 64 << 20)) > 64 << 20
