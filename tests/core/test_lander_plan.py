from __future__ import annotations

import pytest

from fanout.core.findings import lander_cores, lander_count

SHARD = 2 << 20


def test_more_landers_than_splits_hold_cores_for_nothing() -> None:
    finding = lander_count(8, 4, "open shards", bytes_per_second=SHARD)
    assert finding.status == "warning"
    assert finding.detail == (
        "8 for 4 open shards: 4 would have nothing to read, and hold a core each"
    )
    assert finding.advice == (
        "use --landers 4 at most; a reshard or new partitions may need more later"
    )


def test_too_few_landers_for_what_the_shards_may_send_are_named_with_how_many_are_enough() -> None:
    finding = lander_count(4, 400, "open shards", bytes_per_second=SHARD)
    assert finding.status == "warning"
    assert finding.detail == (
        "4 for 400 open shards: 100 at most for each lander, which send up to 210 MB/s, and a "
        "lander takes 50 to 60 MB/s"
    )
    assert "use --landers 17 if all open shards are as busy as that" in finding.advice
    assert lander_count(17, 400, "open shards", bytes_per_second=SHARD).status == "ok"


def test_what_the_documentation_recommends_is_fine() -> None:
    assert lander_count(16, 400, "open shards", bytes_per_second=SHARD).status == "ok"


@pytest.mark.parametrize("landers", [1, 6, 24])
def test_partitions_have_no_limit_that_is_known(landers: int) -> None:
    finding = lander_count(landers, 24, "partitions")
    assert finding.status == "ok"
    assert f"{landers} for 24 partitions: {24 // landers} at most for each" in finding.detail


def test_nothing_is_said_of_landers_without_splits() -> None:
    assert lander_count(2, 0, "open shards").status == "unknown"


def test_landers_hold_cores_for_ever() -> None:
    assert lander_cores(8).detail == (
        "8 landers hold 8 cores for as long as the query runs, and batches need others: give Spark "
        "9 cores at least"
    )
    assert lander_cores(1).detail.startswith("1 lander holds a core for as long")
