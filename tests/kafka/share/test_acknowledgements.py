"""What is logged of acknowledgements that a broker does not confirm."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from fanout.core.lending.acknowledgements import Acknowledgements, SharedState
from fanout.core.lending.dedup import Dedup
from fanout.core.lending.seam import Settlement
from fanout.kafka.share.naming import OffsetNaming
from tests.kafka.share.test_acquired import acquired_records
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.offset_ranges import OffsetRange

REFUSED = TimeoutError("no answer")


class RefusingMember:
    """A member whose broker confirms nothing."""

    def acknowledge(
        self, ranges: Sequence[OffsetRange], kind: Settlement
    ) -> asyncio.Future[Mapping[Partition, Exception]]:
        del kind
        response = asyncio.get_running_loop().create_future()
        response.set_result({range_[0]: REFUSED for range_ in ranges})
        return response


@in_virtual_time
async def test_unconfirmed_acknowledgements_have_ten_lines_a_minute_and_one_for_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "fanout")
    any_: Any = None
    naming = OffsetNaming("group", any_)
    shared = SharedState(any_, 30.0, naming, Dedup(30.0, naming.new_set), None, any_)
    sending = Acknowledgements(cast("Any", RefusingMember()), shared, lambda: None)
    for _ in range(500):
        acquired = acquired_records()
        failed = await sending.send(acquired, acquired.all_rows, Settlement.ACCEPT)
        assert len(failed) == 4
    shared.log_limit.close()
    told = [each.getMessage() for each in caplog.records]
    assert told == [
        *["ACCEPT was not confirmed for 3 partitions, the first is a-0: no answer"] * 10,
        "490 more acknowledgements (ACCEPT) were not confirmed within 60 s",
    ]
