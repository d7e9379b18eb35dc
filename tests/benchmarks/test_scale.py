from __future__ import annotations

import pytest

from benchmarks.scale import compare, stops

DRIVER = "of it the driver"


def test_each_ratio_follows_from_the_rows() -> None:
    report = compare(rounds=1, landers=(1, 2), events=24, many=8, max_records=2000)
    rows = [(row.name.strip(), row.shards) for row in report.rows]
    assert rows == [
        ("in process", 4),
        *((name, 4) for landers in ("1 lander", "2 landers") for name in (landers, DRIVER)),
        ("2 landers", 8),
        (DRIVER, 8),
    ]
    costs = [row.cpu_seconds_per_million for row in report.rows]
    alone, one, _, two, driver, many, _ = (cost or 0.0 for cost in costs)
    assert min(alone, one, two, driver, many) > 0
    assert report.ratios == pytest.approx(
        {
            "scale/driver_share": driver / (two - driver),
            "scale/8_splits/vs_4_splits": two / many,
            "scale/1_lander/vs_in_process": alone / one,
        }
    )


def test_a_death_is_followed_by_records_of_all_splits() -> None:
    seconds = stops(deaths=1, peace=0.0)
    assert 0 < seconds["scale/death/median"] <= seconds["scale/death/most"]
