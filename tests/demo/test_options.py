from __future__ import annotations

import pytest

from fanout.demo.options import DemoOptions, ServiceName
from fanout.errors import OptionError


@pytest.mark.parametrize("records", [0, 999, 1_000_001])
def test_a_number_of_records_out_of_range_is_refused(records: int) -> None:
    with pytest.raises(OptionError, match="between 1,000 and 1,000,000"):
        DemoOptions(records=records)


def test_records_that_would_leave_a_shard_without_any_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 5,000 for 50 shards"):
        DemoOptions(records=4_999, shards=50)


@pytest.mark.parametrize("shards", [0, 51])
def test_a_number_of_shards_out_of_range_is_refused(shards: int) -> None:
    with pytest.raises(OptionError, match="between 1 and 50"):
        DemoOptions(shards=shards)


def test_a_shuffle_needs_kafka() -> None:
    assert DemoOptions(shuffle=True, source=ServiceName.KAFKA).shuffle
    with pytest.raises(OptionError, match="pass source='kafka'"):
        DemoOptions(shuffle=True)
