from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from fanout.kinesis.reading.decode import decode_event, decode_records
from fanout.testing.kinesis.frames import payload_of
from fanout.testing.virtual_time.loop import simulate
from tests.provers.simulation.armed_faults import ArmedFaults
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.kinesis.service.client import KinesisSimClient
from tests.provers.simulation.kinesis.service.service import CONSUMER_ARN, KinesisSimService
from tests.provers.simulation.kinesis.service.stream_log import shard_id_of
from tests.provers.simulation.service_clock import millis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.provers.simulation.kinesis.plan import KinesisPlan
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog
    from tests.provers.simulation.kinesis.service.subscription_frames import SubscriptionFrames

SHARD = shard_id_of(0)
HORIZON = {"Type": "TRIM_HORIZON"}
PLAN = replace(
    draw_kinesis_plan(0),
    mode="polling",
    start="TRIM_HORIZON",
    shards=1,
    records=30,
    reshards=0,
    large=False,
    seconds=600.0,
    consumer="arn",
    faults=(),
)


class Kinesis:
    """A service at work, and two processes that call it."""

    def __init__(self, plan: KinesisPlan, *faults: KinesisFault) -> None:
        self.plan = replace(plan, faults=faults)
        self.log: SourceLog = self.plan.log()
        self.armed = ArmedFaults(faults, lambda _: None)
        self.service = KinesisSimService(self.plan, self.log, Random(1), self.armed)
        self.runs = [ProcessRun(number, HeldEvents(1 << 30), settled=True) for number in (1, 2)]
        self.first, self.second = (
            KinesisSimClient(self.service, self.armed, run) for run in self.runs
        )

    async def poll(self, iterator: str) -> bytes:
        async with self.first.get_records("arn", iterator) as unread:
            return b"".join([chunk async for chunk in unread.chunks])

    async def frame(self, position: dict[str, str] | None = None) -> bytes:
        """Return the first event of a subscription."""
        async with self.first.subscribe(CONSUMER_ARN, SHARD, position or HORIZON) as chunks:
            received = b""
            async for chunk in chunks:
                received += chunk
                length = int.from_bytes(received[:4])
                if len(received) > length + 4:
                    event = received[length:]
                    if len(event) == int.from_bytes(event[:4]):
                        return event
        raise AssertionError("the subscription ended")


def at_work(
    use: Callable[[Kinesis], Awaitable[None]], *faults: KinesisFault, plan: KinesisPlan = PLAN
) -> Kinesis:
    """Let something be done with a service, in virtual time."""
    kinesis = Kinesis(plan, *faults)

    async def conduct() -> None:
        await use(kinesis)

    simulate(conduct)
    return kinesis


async def refused(call: Awaitable[Any]) -> str:
    """Return the code with which a call is refused."""
    with pytest.raises(ClientError) as error:
        await call
    return str(error.value.response["Error"]["Code"])


def test_an_iterator_expires_after_five_minutes() -> None:
    async def use(kinesis: Kinesis) -> None:
        young = await kinesis.first.get_shard_iterator("arn", SHARD, HORIZON)
        await asyncio.sleep(290)
        await kinesis.poll(young)
        await asyncio.sleep(20)
        assert await refused(kinesis.poll(young)) == "ExpiredIteratorException"

    assert at_work(use).service.violations == []


def test_a_sixth_poll_within_a_second_is_refused_and_breaks_a_rule() -> None:
    async def use(kinesis: Kinesis) -> None:
        rates, (run, other) = kinesis.service.rates, kinesis.runs
        for _ in range(5):
            rates.poll(run, "GetRecords", SHARD)
        with pytest.raises(ClientError, match="ProvisionedThroughputExceeded"):
            rates.poll(run, "GetRecords", SHARD)
        rates.poll(run, "GetShardIterator", SHARD)
        await asyncio.sleep(1)
        rates.poll(other, "GetRecords", SHARD)

    (rule,) = at_work(use).service.violations
    assert "more than 5 times a second" in rule


def test_ten_mebibytes_are_rested_for_five_seconds() -> None:
    async def use(kinesis: Kinesis) -> None:
        rates, (run, other) = kinesis.service.rates, kinesis.runs
        rates.returned(run, SHARD, 10 << 20)
        await asyncio.sleep(4.9)
        for each in (run, other):
            with pytest.raises(ClientError, match="ProvisionedThroughputExceeded"):
                rates.poll(each, "GetRecords", SHARD)
        await asyncio.sleep(0.2)
        rates.poll(run, "GetRecords", SHARD)

    (rule,) = at_work(use).service.violations
    assert "2 MiB a second" in rule


def test_a_shard_that_is_polled_to_its_end_names_its_children() -> None:
    async def use(kinesis: Kinesis) -> None:
        iterator: str | None = await kinesis.first.get_shard_iterator("arn", SHARD, HORIZON)
        await asyncio.sleep(250)
        got = []
        while iterator is not None:
            body = await kinesis.poll(iterator)
            event, iterator = decode_records(body, stream="s", shard_id=SHARD)
            got += event.records.column("sequenceNumber").to_pylist()
            await asyncio.sleep(1)
        shard = kinesis.log.shards[SHARD]
        assert got == [str(number) for number in shard.numbers]
        assert [child.parents for child in event.children] == [(SHARD,), (SHARD,)]
        assert event.ended

    storm = KinesisFault(kind=KinesisFaultKind.RESHARD_STORM, at=100.0, seconds=0.01)
    assert at_work(use, storm).service.violations == []


def test_an_event_has_what_is_in_the_log() -> None:
    async def use(kinesis: Kinesis) -> None:
        await asyncio.sleep(600)
        event = decode_event(payload_of(await kinesis.frame()), stream="s", shard_id=SHARD)
        count = event.records.num_rows
        records = kinesis.log.shards[SHARD].records[:count]
        assert count == min(len(kinesis.log.shards[SHARD].records), 10_000, count)
        assert event.records.column("data").to_pylist() == [record.data for record in records]
        assert event.records.column("partitionKey").to_pylist() == [r.key for r in records]
        assert not event.ended

    assert at_work(use).service.violations == []


def test_a_number_that_a_shard_never_had_breaks_a_rule() -> None:
    async def use(kinesis: Kinesis) -> None:
        beyond = str(kinesis.log.shards[SHARD].number_at(millis(1e6)))
        position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": beyond}
        asked = kinesis.first.get_shard_iterator("arn", SHARD, position)
        assert await refused(asked) == "InvalidArgumentException"

    (rule,) = at_work(use).service.violations
    assert "never had" in rule


def test_an_outage_answers_nobody_until_it_is_over() -> None:
    async def use(kinesis: Kinesis) -> None:
        assert kinesis.service.strike_service(
            KinesisFault(kind=KinesisFaultKind.OUTAGE, at=0, seconds=60)
        )
        with pytest.raises(BotoCoreError):
            await kinesis.first.list_shards()
        await asyncio.sleep(60)
        assert len(await kinesis.first.list_shards()) == 1

    at_work(use)


def test_old_credentials_are_refused_until_they_are_renewed() -> None:
    async def use(kinesis: Kinesis) -> None:
        kinesis.service.strike_service(KinesisFault(kind=KinesisFaultKind.ROTATED, at=0))
        assert await refused(kinesis.first.list_shards()) == "ExpiredTokenException"
        with pytest.raises(BotoCoreError):
            await kinesis.first.renew_credentials()
        assert await refused(kinesis.first.list_shards()) == "ExpiredTokenException"
        await kinesis.first.renew_credentials()
        await kinesis.first.list_shards()

    at_work(use, KinesisFault(kind=KinesisFaultKind.RENEWAL_FAILS, at=0))


def test_a_stream_that_is_replaced_has_other_numbers_and_another_creation() -> None:
    async def use(kinesis: Kinesis) -> None:
        before = (await kinesis.first.list_shards())[0], await kinesis.first.describe_stream()
        kinesis.service.strike_service(
            KinesisFault(kind=KinesisFaultKind.STREAM_REPLACED, at=0, seconds=9)
        )
        assert await refused(kinesis.first.list_shards()) == "ResourceNotFoundException"
        await asyncio.sleep(10)
        after = (await kinesis.first.list_shards())[0], await kinesis.first.describe_stream()
        assert before[0].shard_id == after[0].shard_id
        assert before[0].first < after[0].first
        assert before[1].created < after[1].created
        assert kinesis.service.gone

    at_work(use)


def test_a_closed_shard_that_expires_is_listed_and_read_no_more() -> None:
    async def use(kinesis: Kinesis) -> None:
        await asyncio.sleep(300)
        assert SHARD in {shard.shard_id for shard in await kinesis.first.list_shards()}
        assert kinesis.service.strike_service(
            KinesisFault(kind=KinesisFaultKind.SHARDS_EXPIRED, at=0, seconds=1)
        )
        assert SHARD not in {shard.shard_id for shard in await kinesis.first.list_shards()}
        asked = kinesis.first.get_shard_iterator("arn", SHARD, HORIZON)
        assert await refused(asked) == "ResourceNotFoundException"

    storm = KinesisFault(kind=KinesisFaultKind.RESHARD_STORM, at=100.0, seconds=0.01)
    assert at_work(use, storm).service.violations == []


@pytest.mark.parametrize("answered", [True, False], ids=["knows", "does not know"])
def test_whoever_knows_of_a_subscription_waits_for_five_seconds(answered: bool) -> None:  # noqa: FBT001
    async def use(kinesis: Kinesis) -> None:
        succeeded = kinesis.service.consumers.begin
        given_up = asyncio.timeout(None)

        def begin(arn: str, body: SubscriptionFrames) -> None:
            succeeded(arn, body)
            if not answered:
                given_up.reschedule(kinesis.service.now)

        with pytest.MonkeyPatch.context() as patch, suppress(TimeoutError):
            patch.setattr(kinesis.service.consumers, "begin", begin)
            async with given_up, kinesis.first.subscribe(CONSUMER_ARN, SHARD, HORIZON):
                pass
        await asyncio.sleep(1)
        assert await refused(kinesis.frame()) == "ResourceInUseException"

    rules = at_work(use, plan=replace(PLAN, mode="efo")).service.violations
    assert ["within five seconds" in rule for rule in rules] == [True] * answered


def test_a_consumer_that_is_given_by_its_arn_is_gone_for_good() -> None:
    async def use(kinesis: Kinesis) -> None:
        assert kinesis.service.strike_service(
            KinesisFault(kind=KinesisFaultKind.CONSUMER_DELETING, at=0, seconds=30)
        )
        described = await kinesis.first.describe_consumer(arn=CONSUMER_ARN)
        assert described.status == "DELETING"
        assert await refused(kinesis.frame()) == "ResourceNotFoundException"
        await asyncio.sleep(30)
        asked = kinesis.first.describe_consumer(arn=CONSUMER_ARN)
        assert await refused(asked) == "ResourceNotFoundException"
        assert kinesis.service.gone

    at_work(use)


def test_a_clock_that_is_behind_refuses_the_present() -> None:
    async def use(kinesis: Kinesis) -> None:
        now = {"Type": "AT_TIMESTAMP", "Timestamp": millis(0) / 1000}
        kinesis.service.strike_service(
            KinesisFault(kind=KinesisFaultKind.CLOCK_BEHIND, at=0, seconds=60)
        )
        asked = kinesis.first.get_shard_iterator("arn", SHARD, now)
        assert await refused(asked) == "InvalidArgumentException"
        kinesis.service.strike_service(
            KinesisFault(kind=KinesisFaultKind.CLOCK_AHEAD, at=0, seconds=60)
        )
        await kinesis.first.get_shard_iterator("arn", SHARD, now)

    assert at_work(use).runs[0].refused_times == 1


def test_a_frame_is_whole_as_its_last_piece_is_asked_for() -> None:
    async def use(kinesis: Kinesis) -> None:
        cut = False
        while not cut:  # half of the subscriptions are not
            async with kinesis.first.subscribe(CONSUMER_ARN, SHARD, HORIZON) as chunks:
                attempt = kinesis.runs[0].attempts.last(SHARD)
                assert attempt is not None
                frame = b""
                async for chunk in chunks:
                    frame += chunk
                    if len(frame) < max(4, int.from_bytes(frame[:4])):
                        assert attempt.whole_at == math.inf
                        cut = True
                    else:
                        assert attempt.whole_at <= kinesis.service.now
                        frame = b""
            await asyncio.sleep(6)

    at_work(use, plan=replace(PLAN, mode="efo"))
