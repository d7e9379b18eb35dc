"""The clock of this machine may be wrong: positions follow the clock of the service."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from fanout.testing import wsgi_call
from fanout.testing.kinesis import server_state
from tests.support.kinesis.reading import FIRST, next_second

if TYPE_CHECKING:
    from tests.support.kinesis.reading import Stream

SKEWS = [timedelta(minutes=-5), timedelta(minutes=5)]


class Skewed(datetime):
    """The service's clock, ahead of this machine's."""

    ahead: ClassVar[timedelta]

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + cls.ahead


@pytest.fixture(params=SKEWS, ids=["the service is behind", "the service is ahead"])
def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    Skewed.ahead = request.param
    monkeypatch.setattr(server_state, "datetime", Skewed)
    monkeypatch.setattr(
        wsgi_call, "formatdate", lambda **_: format_datetime(Skewed.now(UTC), usegmt=True)
    )


@pytest.mark.fault("The clock of the host is five minutes off, either way")
@pytest.mark.usefixtures("skew")
async def test_latest_neither_skips_nor_repeats_although_our_clock_is_5_minutes_off(
    stream: Stream,
) -> None:
    stream.put(3)
    await next_second()
    async with stream.reading(start="LATEST") as reader:
        stream.log.clear()
        stream.put(3)
        await reader.has(3)
    assert reader.log == stream.log


@pytest.mark.fault("The clock of the host is five minutes off, either way")
@pytest.mark.usefixtures("skew")
async def test_a_time_of_the_service_is_exact_although_our_clock_is_5_minutes_off(
    stream: Stream,
) -> None:
    for _ in range(6):
        stream.put(1)
        await asyncio.sleep(0.003)
    async with stream.open() as opened:
        found = await opened.drain(max_records=6, first_wait=math.inf)
    (arrived,) = [each.records.column("approximateArrivalTimestamp") for each in found.batches]
    moments: list[datetime] = arrived.to_pylist()
    wanted = sum(moment >= moments[3] for moment in moments)
    async with stream.reading(start=moments[3]) as reader:
        await reader.has(wanted)
    assert reader.log[FIRST] == stream.log[FIRST][-wanted:]
    assert reader.causes == []
