"""The calls that find out the state of a shard, and the verdicts on failing answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import aiohttp
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.events import Batch, Split
from fanout.core.policy import Fatal, Finish, Pace, Retry, Skip
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.progress import ABSENCES
from fanout.errors import ServiceError, UnconfirmedEndError
from fanout.kinesis import shards as catalog_module
from fanout.kinesis.aws.api import ConsumerDescription, HashRange, ShardDescription
from fanout.kinesis.policy import KinesisRemedy
from fanout.kinesis.reading.recovery import Recovery
from fanout.kinesis.registration import ConsumerRegistration
from fanout.kinesis.shards import ShardCatalog
from fanout.testing.virtual_time.loop import simulate

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from fanout.core.policy import Verdict
    from fanout.core.positions import Position

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
PARENT, CHILD = Split("parent"), Split("child", ("parent",))
KEYS = HashRange(0, 1)
CLOSED = ShardDescription("parent", (), 10, 20, KEYS)
OPEN = ShardDescription("child", ("parent",), 30, None, KEYS)
HERE = Cursor(31)
ALL_THERE = Retry(hint="the stream, its consumer and the shard are all there", limit=10)


def refused(code: str, operation: str) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": "no"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    return ClientError(response, operation)


@dataclass
class Service:
    """A stream whose calls take a second each of virtual time.

    Args:
        shards: The listed shards.
        consumers: How many consumers have been registered, and the latest exists.
        failing: The errors that the calls of a name raise, for as long as they do.
        status: The consumer's status.
        seconds: How long the calls of a name take; one that is not named takes a second.
    """

    shards: tuple[ShardDescription, ...] = (CLOSED, OPEN)
    consumers: int = 1
    gone: bool = False
    failing: dict[str, Exception] = field(default_factory=dict)
    status: str = "ACTIVE"
    seconds: dict[str, float] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def list_shards(self) -> list[ShardDescription]:
        await self._call("list")
        return list(self.shards)

    async def describe_consumer(
        self, *, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> ConsumerDescription:
        del stream_arn, name
        await self._call("describe")
        if self.gone or arn not in {None, self._consumer().arn}:
            raise refused("ResourceNotFoundException", "DescribeStreamConsumer")
        return self._consumer()

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str]
    ) -> ConsumerDescription:
        del stream_arn, name, tags
        await self._call("register")
        self.gone = False
        self.consumers += 1
        return self._consumer()

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(self.seconds.get(name, 1))
        if name in self.failing:
            raise self.failing[name]

    def _consumer(self) -> ConsumerDescription:
        arn = f"{STREAM_ARN}/consumer/etl:{self.consumers}"
        return ConsumerDescription("etl", arn, self.status, datetime(2026, 11, 20, tzinfo=UTC))


class Rig:
    """A recovery on a service."""

    def __init__(self, service: Service, *, polling: bool = False, may_lose: bool = False) -> None:
        kinesis: Any = service
        self.service = service
        self.catalog = ShardCatalog(kinesis)
        jitter = FullJitter(Backoff(), Random(7))
        self.registration = ConsumerRegistration(kinesis, STREAM_ARN, "etl", jitter=jitter, tags={})
        self.recovery = Recovery(
            kinesis,
            "orders",
            self.catalog,
            None if polling else self.registration,
            on_data_loss="earliest" if may_lose else "fail",
        )

    async def ready(self) -> None:
        await self.registration.ensure()
        self.service.calls.clear()

    def confirm(self, position: Position, *, exhausted: bool) -> Coroutine[Any, Any, Verdict]:
        error = UnconfirmedEndError("one sign", exhausted=exhausted)
        return self.recovery.verdict(KinesisRemedy.CONFIRM_END, error, PARENT, position)

    def refuse(self, position: Position) -> Coroutine[Any, Any, Verdict]:
        error = refused("InvalidArgumentException", "SubscribeToShard")
        return self.recovery.verdict(KinesisRemedy.DATA_LOSS, error, CHILD, position)

    def ask(self, split: Split = CHILD, position: Position = HERE) -> Coroutine[Any, Any, Verdict]:
        error = refused("ResourceNotFoundException", "SubscribeToShard")
        return self.recovery.verdict(KinesisRemedy.FIND_CAUSE, error, split, position)


def asked(
    rig: Rig, failing: Mapping[str, Exception] | None = None, *, gone: bool = False
) -> Verdict:
    """Return the verdict where some calls fail once the stream is open."""

    async def main() -> Verdict:
        await rig.ready()
        rig.service.failing = dict(failing or {})
        rig.service.gone = gone
        return await rig.ask()

    return simulate(main)


def test_one_listing_and_one_description_tell_that_all_is_there() -> None:
    rig = Rig(Service())
    assert asked(rig) == ALL_THERE
    assert rig.service.calls == ["list", "describe"]


def test_in_polling_no_consumer_is_looked_at() -> None:
    rig = Rig(Service(), polling=True)
    assert asked(rig) == ALL_THERE
    assert rig.service.calls == ["list"]


def test_shards_that_fail_together_share_a_look_and_one_registration() -> None:
    rig = Rig(Service())

    async def main() -> None:
        await rig.ready()
        rig.service.gone = True
        async with asyncio.TaskGroup() as tasks:
            verdicts = []
            for _ in range(50):
                verdicts.append(tasks.create_task(rig.ask()))
                await asyncio.sleep(0.01)
        again = Retry(Pace.FLOOR, hint="the consumer was gone, and was registered again")
        # Those that failed after the first look began have made sure with one of their own.
        assert {task.result() for task in verdicts} == {again, ALL_THERE}
        assert rig.service.calls.count("register") == 1
        assert rig.service.calls.count("list") == 2
        assert rig.registration.arn.endswith(":2")

    simulate(main)


def test_a_look_from_before_an_error_tells_nothing_about_it() -> None:
    rig = Rig(Service())

    async def main() -> None:
        await rig.ready()
        assert await rig.ask() == ALL_THERE
        rig.service.gone = True
        assert isinstance(verdict := await rig.ask(), Retry)
        assert verdict.pace is Pace.FLOOR

    simulate(main)


def test_a_look_that_is_cancelled_lets_the_next_one_look() -> None:
    rig = Rig(Service())

    async def main() -> None:
        await rig.ready()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await rig.ask()
        assert await rig.ask() == ALL_THERE

    simulate(main)


@pytest.mark.parametrize("call", ["list", "describe"])
@pytest.mark.parametrize(
    "error",
    [
        refused("LimitExceededException", "ListShards"),
        refused("InternalFailure", "ListShards"),
        aiohttp.ClientConnectionError("no route"),
        TimeoutError("slow"),
    ],
    ids=str,
)
def test_a_look_that_fails_for_now_is_taken_again_with_jitter(call: str, error: Exception) -> None:
    assert asked(Rig(Service()), {call: error}) == Retry()


def test_shards_that_fail_together_share_a_look_that_fails() -> None:
    rig = Rig(Service())

    async def main() -> None:
        await rig.ready()
        rig.service.failing = {"list": TimeoutError("slow")}
        verdicts = await asyncio.gather(*(rig.ask() for _ in range(50)))
        assert verdicts == [Retry()] * 50
        assert rig.service.calls == ["list"]

    simulate(main)


def test_a_look_that_is_denied_names_the_action() -> None:
    denied = refused("AccessDeniedException", "DescribeStreamConsumer")
    verdict = asked(Rig(Service()), {"describe": denied})
    assert isinstance(verdict, Retry)
    assert verdict.pace is Pace.SLOW
    assert "grant kinesis:DescribeStreamConsumer" in verdict.hint


@pytest.mark.parametrize("code", ["LimitExceededException", "InternalFailure"])
def test_a_registration_that_fails_for_now_is_tried_again(code: str) -> None:
    failing = {"register": refused(code, "RegisterStreamConsumer")}
    assert asked(Rig(Service()), failing, gone=True) == Retry()


@pytest.mark.parametrize(("status", "gone"), [("CREATING", True), ("DELETING", False)])
def test_a_consumer_that_takes_long_to_come_back_is_waited_for_again(
    status: str,
    gone: bool,  # noqa: FBT001
) -> None:
    rig = Rig(Service())

    async def main() -> Verdict:
        await rig.ready()
        rig.service.gone, rig.service.status = gone, status
        return await rig.ask()

    assert simulate(main) == Retry()


def test_a_registration_that_nobody_answers_is_tried_again() -> None:
    service = Service()

    async def main() -> Verdict:
        rig = Rig(service)
        await rig.ready()
        service.gone = True
        service.seconds["register"] = 90
        return await rig.ask()

    assert simulate(main) == Retry()


def test_a_registration_that_is_refused_ends_the_stream_with_its_reason() -> None:
    failing = {"register": refused("ValidationException", "RegisterStreamConsumer")}
    verdict = asked(Rig(Service()), failing, gone=True)
    assert isinstance(verdict, Fatal)
    assert "the consumer 'etl' cannot be used" in verdict.hint


def test_a_shard_that_is_too_new_to_be_listed_is_waited_for() -> None:
    rig = Rig(Service(shards=(CLOSED,)))

    async def main() -> None:
        await rig.ready()
        for _ in range(ABSENCES - 1):
            assert await rig.ask(CHILD, Horizon()) == Retry(hint="the shard is not listed")
        rig.service.shards = (CLOSED, OPEN)
        assert await rig.ask(CHILD, Horizon()) == ALL_THERE

    simulate(main)


@pytest.mark.parametrize("shards", [(), (CLOSED,)])
@pytest.mark.parametrize("may_lose", [False, True])
def test_a_shard_that_has_just_sent_half_an_end_has_not_expired_whatever_the_listing_says(
    shards: tuple[ShardDescription, ...],
    may_lose: bool,  # noqa: FBT001
) -> None:
    rig = Rig(Service(shards=shards), may_lose=may_lose)

    async def main() -> None:
        await rig.ready()
        await rig.catalog.refresh()
        rig.service.shards = (OPEN,)
        for exhausted in (False, True):
            verdict = await rig.confirm(Cursor(19), exhausted=exhausted)
            assert verdict == Retry(hint="the shard is not listed", limit=3)

    simulate(main)


def test_a_shard_that_no_listing_names_has_expired() -> None:
    rig = Rig(Service(shards=()), may_lose=True)

    async def main() -> None:
        await rig.ready()
        verdicts = [await rig.ask(PARENT, Horizon()) for _ in range(ABSENCES)]
        assert [type(verdict) for verdict in verdicts] == [Retry] * (ABSENCES - 1) + [Finish]

    simulate(main)


@pytest.mark.parametrize("listed_before", [False, True])
def test_a_shard_that_was_read_has_not_expired_because_one_listing_is_older_than_it(
    listed_before: bool,  # noqa: FBT001
) -> None:
    rig = Rig(Service(shards=(OPEN,) if listed_before else ()), may_lose=True)

    async def main() -> None:
        await rig.ready()
        await rig.catalog.refresh()
        for _ in range(2):
            rig.service.shards = ()
            for _ in range(ABSENCES - 1):
                assert await rig.refuse(HERE) == Retry(hint="the shard is not listed")
            rig.service.shards = (OPEN,)
            assert isinstance(await rig.refuse(HERE), Skip), "listed again, it is counted anew"
        rig.service.shards = ()
        verdicts = [await rig.refuse(HERE) for _ in range(ABSENCES)]
        assert [type(verdict) for verdict in verdicts] == [Retry] * (ABSENCES - 1) + [Finish]

    simulate(main)


def test_a_shard_whose_child_is_listed_is_not_too_new_to_be_listed() -> None:
    rig = Rig(Service(shards=(OPEN,)), may_lose=True)

    async def main() -> None:
        await rig.ready()
        verdict = await rig.ask(PARENT, Horizon())
        assert isinstance(verdict, Finish)
        assert verdict.children == (CHILD,)

    simulate(main)


@pytest.mark.parametrize("may_lose", [False, True])
@pytest.mark.parametrize(("position", "lost"), [(Cursor(20), False), (Cursor(19), True)])
def test_a_shard_that_was_listed_and_is_no_more_is_judged_by_where_its_reader_stands(
    position: Cursor,
    lost: bool,  # noqa: FBT001
    may_lose: bool,  # noqa: FBT001
) -> None:
    rig = Rig(Service(), may_lose=may_lose)

    async def main() -> None:
        await rig.ready()
        await rig.catalog.refresh()
        rig.service.shards = (OPEN,)
        verdict = await rig.ask(PARENT, position)
        if not lost:
            assert verdict == Finish((CHILD,))
        elif may_lose:
            assert isinstance(verdict, Finish)
            assert verdict.children == (CHILD,)
            assert "after sequence number 19" in verdict.lost
        else:
            assert isinstance(verdict, Fatal)
            assert "after sequence number 19" in verdict.hint

    simulate(main)


def test_a_closed_shard_that_is_exhausted_twice_at_one_position_has_ended() -> None:
    rig = Rig(Service())

    async def main() -> None:
        await rig.ready()
        again = Retry(hint="the shard is listed as closed, but is not read to its end", limit=3)
        assert await rig.confirm(Cursor(14), exhausted=True) == again
        assert await rig.confirm(Cursor(15), exhausted=True) == again
        assert await rig.confirm(Cursor(15), exhausted=True) == Finish((CHILD,))

    simulate(main)


def test_children_beside_a_continuation_end_a_shard_only_at_its_last_number() -> None:
    rig = Rig(Service())

    async def main() -> None:
        await rig.ready()
        verdicts = [await rig.confirm(Cursor(19), exhausted=False) for _ in range(3)]
        assert [type(verdict) for verdict in verdicts] == [Retry] * 3
        assert await rig.confirm(Cursor(20), exhausted=False) == Finish((CHILD,))

    simulate(main)


def batch(number: int) -> Batch:
    """Build what the child sends: one record, or none for the number 0."""
    records = pa.record_batch({"sequenceNumber": [str(number)] if number else []})
    return Batch(CHILD, records, Range(Horizon(), Cursor(number)))


def test_records_may_expire_more_than_once() -> None:
    rig = Rig(Service(), may_lose=True)

    async def main() -> None:
        await rig.ready()
        for refused, first in ((31, 40), (41, 50), (51, 60)):
            assert isinstance(await rig.refuse(Cursor(refused)), Skip)
            rig.recovery.check_after_loss(batch(0))
            rig.recovery.check_after_loss(batch(first))

    simulate(main)


@pytest.mark.parametrize("refused", [Cursor(40), Cursor(40, 1), Cursor(41)])
def test_a_record_that_was_read_in_part_or_whole_is_not_handed_on_behind_a_gap(
    refused: Cursor,
) -> None:
    rig = Rig(Service(), may_lose=True)

    async def main() -> None:
        await rig.ready()
        rig.recovery.check_after_loss(batch(40))  # ordinary, as nothing was refused yet
        await rig.refuse(refused)
        for _ in range(2):
            with pytest.raises(ServiceError, match=r"still has older records"):
                rig.recovery.check_after_loss(batch(40))

    simulate(main)


def test_the_catalog_says_that_a_shard_of_another_stream_has_taken_the_name() -> None:
    rig = Rig(Service())

    async def main() -> None:
        assert await rig.catalog.refresh() == [PARENT, CHILD]
        rig.service.shards = (replace(OPEN, shard_id="parent", first=99),)
        with pytest.raises(ServiceError, match="parent begins at 99 now, and began at 10"):
            await rig.catalog.refresh()
        assert set(rig.catalog.listed) == {"parent", "child"}

    simulate(main)


def test_the_catalog_forgets_the_oldest_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "MAX_SHARDS", 3)
    rig = Rig(Service())

    async def main() -> None:
        for number in range(5):
            rig.service.shards = (replace(OPEN, shard_id=str(number)),)
            await rig.catalog.refresh()
        assert set(rig.catalog.known) == {"2", "3", "4"}

    simulate(main)


def test_the_catalog_forgets_no_shard_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "MAX_SHARDS", 2)
    rig = Rig(Service())

    async def main() -> None:
        for number in range(3):
            rig.service.shards = (CLOSED, replace(OPEN, shard_id=str(number)))
            await rig.catalog.refresh()
            assert set(rig.catalog.known) == {"parent", str(number)}

    simulate(main)


def test_a_listing_that_was_asked_for_earlier_and_comes_later_replaces_nothing() -> None:
    answers = [(1, [CLOSED, OPEN]), (5, [replace(CLOSED, last=None)])]

    class Slow:
        async def list_shards(self) -> list[ShardDescription]:
            seconds, shards = answers.pop()
            await asyncio.sleep(seconds)
            return shards

    async def main() -> None:
        kinesis: Any = Slow()
        catalog = ShardCatalog(kinesis)
        async with asyncio.TaskGroup() as tasks:
            early = tasks.create_task(catalog.refresh())
            late = tasks.create_task(catalog.refresh())
        assert early.result() == late.result() == [PARENT, CHILD]
        assert catalog.listed == catalog.known == {"parent": CLOSED, "child": OPEN}

    simulate(main)
