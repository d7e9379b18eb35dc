from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from fanout.core.policy import Fatal, Pace, Retry, Skip
from fanout.core.positions import Cursor, Horizon
from fanout.kafka.reading.data_loss import DataLossCheck
from fanout.kafka.reading.offsets import cursor_before
from fanout.kafka.reading.policy import Remedy
from fanout.kafka.reading.transport import LogDivergedError
from fanout.testing.virtual_time.loop import running_loop
from tests.support.kafka.scripted_cluster import ScriptedCluster
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.kafka.partitions import Partition

PLACE, TOPIC = Remedy.FIND_OFFSET, Remedy.FIND_TOPIC


class Case:
    """A partition whose reader is refused again and again."""

    def __init__(
        self, *, may_lose: bool = False, stops: dict[Partition, int] | None = None
    ) -> None:
        self.cluster = ScriptedCluster()
        (self.partition,) = self.cluster.partitions
        self.losses = DataLossCheck(
            self.cluster, on_data_loss="earliest" if may_lose else "fail", stops=stops or {}
        )

    async def refused(self, remedy: Remedy, position: Position) -> Verdict:
        return await self.losses.verdict(remedy, self.partition, position)

    async def declared(self, remedy: Remedy, position: Position) -> Verdict:
        """Ask until the verdict is another one than to ask again; note how long that took."""
        for _ in range(20):
            verdict = await self.refused(remedy, position)
            if not (isinstance(verdict, Retry) and verdict.pace is Pace.JITTER):
                return verdict
            assert "false alarm" in verdict.hint
            await asyncio.sleep(1.0)
        raise AssertionError


@pytest.mark.fault("A broker that has just started does not know a topic or an offset yet")
@in_virtual_time
async def test_a_loss_is_declared_after_several_looks_over_some_seconds_and_not_before() -> None:
    case = Case()
    case.cluster.log().append(10)
    case.cluster.log().expire(5)
    for _ in range(9):
        assert isinstance(await case.refused(PLACE, Cursor(1)), Retry)
        await asyncio.sleep(1.1)
    await asyncio.sleep(0.2)
    assert isinstance(await case.refused(PLACE, Cursor(1)), Fatal)


@pytest.mark.fault("A broker that has just started does not know a topic or an offset yet")
@in_virtual_time
async def test_looks_in_quick_succession_are_one_look() -> None:
    case = Case()
    case.cluster.log().append(10)
    case.cluster.log().expire(5)
    # As a broker is asked that has just started, and started once more a little later.
    for _ in range(2):
        for _ in range(10):
            assert isinstance(await case.refused(PLACE, Cursor(1)), Retry)
            await asyncio.sleep(0.1)
        await asyncio.sleep(15.0)


@in_virtual_time
async def test_a_loss_needs_more_than_two_looks_however_far_apart_they_are() -> None:
    case = Case()
    case.cluster.log().append(10)
    case.cluster.log().expire(5)
    for _ in range(3):
        assert isinstance(await case.refused(PLACE, Cursor(1)), Retry)
        await asyncio.sleep(60.0)
    assert isinstance(await case.refused(PLACE, Cursor(1)), Fatal)


@in_virtual_time
async def test_records_that_expired_before_they_were_read_are_named_and_what_to_do() -> None:
    case = Case()
    case.cluster.log().append(10)
    case.cluster.log().append(10)
    case.cluster.log().expire(10)
    verdict = await case.declared(PLACE, Cursor(2))
    assert isinstance(verdict, Fatal)
    assert "from offset 3 to 9 have expired" in verdict.hint
    assert "on_data_loss='earliest'" in verdict.hint


@in_virtual_time
async def test_with_on_data_loss_earliest_a_reader_goes_on_with_the_oldest_record() -> None:
    case = Case(may_lose=True)
    case.cluster.log().append(10)
    case.cluster.log().append(10)
    case.cluster.log().expire(10)
    verdict = await case.declared(PLACE, Cursor(2))
    assert isinstance(verdict, Skip)
    assert verdict.to == Cursor(9)
    assert "from offset 3 to 9" in verdict.reason


CUT = LogDivergedError("t-0", 4, 6)  # epoch 4 ends at offset 6


def refusing(case: Case, error: Exception) -> Case:
    """Let the leader refuse each fetch of a case whose log has grown beyond its reader again."""
    case.cluster.log().append(20)
    case.cluster.answer_faults[case.partition] = deque([error] * 20)
    return case


@in_virtual_time
async def test_a_log_that_was_cut_off_and_has_grown_again_is_a_loss_that_names_its_place() -> None:
    verdict = await refusing(Case(), CUT).declared(PLACE, cursor_before(10, 4))
    assert isinstance(verdict, Fatal)
    assert "t-0 was cut off at offset 6 by an unclean leader election" in verdict.hint
    assert "up to offset 9, are lost" in verdict.hint
    assert "on_data_loss='earliest'" in verdict.hint


@pytest.mark.parametrize("epoch", [4, 5])
@in_virtual_time
async def test_with_on_data_loss_earliest_all_that_is_left_of_a_log_comes_again(epoch: int) -> None:
    # The log may be that of another topic with the same name, so that nothing of it was read.
    verdict = await refusing(Case(may_lose=True), CUT).declared(PLACE, cursor_before(10, epoch))
    assert isinstance(verdict, Skip)
    assert isinstance(verdict.to, Cursor)
    assert (verdict.to, verdict.to.state) == (Cursor(-1), "")
    assert ("cut off at offset 6" in verdict.reason) == (epoch == 4)


@in_virtual_time
async def test_a_log_that_was_cut_off_at_the_reader_is_left_once() -> None:
    case = refusing(Case(may_lose=True), LogDivergedError("t-0", 2, 9))
    case.cluster.log().expire(10)
    verdict = await case.declared(PLACE, cursor_before(10, 4))
    assert isinstance(verdict, Skip)
    assert isinstance(verdict.to, Cursor)
    assert (verdict.to, verdict.to.state) == (Cursor(9), "")


@in_virtual_time
async def test_a_topic_that_never_had_the_epoch_of_its_reader_was_created_anew() -> None:
    case = refusing(Case(), OffsetOutOfRangeError())
    verdict = await case.declared(PLACE, cursor_before(10, 4))
    assert isinstance(verdict, Fatal)
    assert "has never had the leader epoch 4" in verdict.hint
    assert "created anew" in verdict.hint


@in_virtual_time
async def test_a_leader_that_has_the_record_after_all_contradicts_a_loss() -> None:
    case = Case()
    case.cluster.log().append(20)
    verdict = await case.refused(PLACE, cursor_before(10, 4))
    assert isinstance(verdict, Retry)
    assert "the partition has this offset" in verdict.hint


@in_virtual_time
async def test_an_error_of_the_look_at_an_epoch_passes() -> None:
    case = refusing(Case(), NotLeaderForPartitionError())
    assert isinstance(await case.refused(PLACE, cursor_before(10, 4)), Retry)


@pytest.mark.parametrize("may_lose", [False, True])
@in_virtual_time
async def test_a_partition_that_ends_before_its_reader_was_created_anew_or_cut_off(
    may_lose: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    case = Case(may_lose=may_lose)
    case.cluster.log().append(5)
    verdict = await case.declared(PLACE, Cursor(99))
    if may_lose:
        assert isinstance(verdict, Skip)
        assert verdict.to == Cursor(-1)
        text = verdict.reason
    else:
        assert isinstance(verdict, Fatal)
        text = verdict.hint
    assert "ends at offset 5, before offset 100" in text
    assert "created anew" in text


@pytest.mark.fault("A broker that has just started does not know a topic or an offset yet")
@in_virtual_time
async def test_an_end_that_is_short_only_for_a_moment_is_no_loss() -> None:
    case = Case(may_lose=True)
    log = case.cluster.log()
    log.append(5)
    for _ in range(3):
        assert isinstance(await case.refused(PLACE, Cursor(9)), Retry)
        await asyncio.sleep(4.0)
    log.append(5)
    verdict = await case.refused(PLACE, Cursor(9))
    assert isinstance(verdict, Retry)
    log.end = 5
    assert isinstance(await case.refused(PLACE, Cursor(9)), Retry)


@pytest.mark.parametrize("how", ["answered", "moved", "another refusal"])
@in_virtual_time
async def test_confirmation_begins_anew_when_something_else_was_seen(how: str) -> None:
    case = Case(may_lose=True)
    case.cluster.log().append(5)
    position = Cursor(9)
    for _ in range(3):
        assert isinstance(await case.refused(PLACE, position), Retry)
        await asyncio.sleep(10.0)
    match how:
        case "answered":
            case.losses.forget(case.partition)
        case "moved":
            position = Cursor(10)
        case _:
            logs = case.cluster.logs.copy()
            case.cluster.logs.clear()
            assert isinstance(await case.refused(TOPIC, position), Retry)
            case.cluster.logs.update(logs)
    assert isinstance(await case.refused(PLACE, position), Retry)


@pytest.mark.fault("An offset is asked for that the partition does not have")
@in_virtual_time
async def test_an_offset_that_is_refused_although_the_partition_has_it_is_asked_for_again() -> None:
    case = Case(may_lose=True)
    case.cluster.log().append(5)
    for offset in (-1, 4):
        assert await case.refused(PLACE, Cursor(offset)) == Retry(
            hint="the partition has this offset", limit=40
        )


@in_virtual_time
async def test_a_position_that_names_no_offset_cannot_be_lost() -> None:
    assert isinstance(await Case().refused(PLACE, Horizon()), Retry)


@pytest.mark.parametrize(
    "error",
    [KafkaConnectionError(), TopicAuthorizationFailedError(), UnknownTopicOrPartitionError()],
)
@in_virtual_time
async def test_where_the_cluster_cannot_be_asked_nothing_is_declared(error: Exception) -> None:
    case = Case()
    case.cluster.log().append(5)
    began = running_loop().time()
    while running_loop().time() < began + 60:
        case.cluster.offset_faults.append(error)
        case.cluster.look_faults.append(error)
        for remedy in (PLACE, TOPIC):
            assert isinstance(await case.refused(remedy, Cursor(9)), Retry)
        await asyncio.sleep(1.0)


@pytest.mark.fault("A broker that has just started does not know a topic or an offset yet")
@in_virtual_time
async def test_a_topic_that_is_not_known_for_a_moment_is_no_loss() -> None:
    case = Case()
    verdict = await case.refused(TOPIC, Cursor(9))
    assert verdict == Retry(hint="the partition has this offset", limit=40)


@in_virtual_time
async def test_a_topic_that_was_deleted_is_fatal() -> None:
    case = Case()
    case.cluster.logs.clear()
    verdict = await case.declared(TOPIC, Cursor(9))
    assert isinstance(verdict, Fatal)
    assert "the topic 't' was deleted" in verdict.hint


@in_virtual_time
async def test_with_on_data_loss_earliest_a_deleted_topic_is_waited_for_and_read_anew() -> None:
    case = Case(may_lose=True)
    case.cluster.logs.clear()
    verdict = await case.declared(TOPIC, Cursor(9))
    assert isinstance(verdict, Skip)
    assert verdict.to == Cursor(-1)
    verdict = await case.declared(TOPIC, verdict.to)
    assert isinstance(verdict, Retry)
    assert verdict.pace is Pace.SLOW


@pytest.mark.fault("Access is refused, at first or later")
@in_virtual_time
async def test_a_topic_that_we_may_not_see_any_more_is_no_loss() -> None:
    class Closed(ScriptedCluster):
        async def describe(self, topics: Sequence[str]) -> Mapping[str, Any]:
            return {topic: TopicAuthorizationFailedError(topic) for topic in topics}

    case = Case()
    case.losses = DataLossCheck(Closed(), on_data_loss="fail", stops={})
    verdict = await case.declared(TOPIC, Cursor(9))
    assert isinstance(verdict, Retry)
    assert verdict.pace is Pace.SLOW
    assert "grant" in verdict.hint


@in_virtual_time
async def test_a_topic_that_came_back_with_fewer_partitions_has_lost_this_one() -> None:
    class Smaller(ScriptedCluster):
        async def describe(self, topics: Sequence[str]) -> Mapping[str, Any]:
            return {topic: [1] for topic in topics}

    case = Case()
    case.losses = DataLossCheck(Smaller(), on_data_loss="fail", stops={})
    verdict = await case.declared(TOPIC, Cursor(9))
    assert isinstance(verdict, Fatal)
    assert "fewer partitions" in verdict.hint


@pytest.mark.fault("A stop lies beyond the end")
@in_virtual_time
async def test_a_bounded_read_goes_to_its_stop_where_that_can_never_be_reached() -> None:
    cluster = ScriptedCluster()
    (partition,) = cluster.partitions
    for remedy in (PLACE, TOPIC):
        case = Case(may_lose=True, stops={partition: 50})
        if remedy is TOPIC:
            case.cluster.logs.clear()
        else:
            case.cluster.log().append(5)
        verdict = await case.declared(remedy, Cursor(9))
        assert isinstance(verdict, Skip)
        assert verdict.to == Cursor(49)


OLD, NEW = "a" * 22, "b" * 22
RECREATED = (
    "A topic is deleted and created again between two runs, however many records it has then"
)


def recreated(case: Case, count: int) -> Case:
    """Let the topic of a case be another one, with so many records."""
    case.cluster.ids["t"] = NEW
    case.cluster.log().append(count)
    return case


@pytest.mark.fault(RECREATED)
@in_virtual_time
async def test_a_position_of_another_topic_by_the_same_name_is_a_loss() -> None:
    verdict = await recreated(Case(), 20).declared(PLACE, cursor_before(10, 0, OLD))
    assert isinstance(verdict, Fatal)
    assert "the topic 't' was deleted and created anew: what it had from offset 10" in verdict.hint
    assert "on_data_loss='earliest'" in verdict.hint


@pytest.mark.fault(RECREATED)
@pytest.mark.parametrize("offset", [0, 10])
@in_virtual_time
async def test_with_on_data_loss_earliest_another_topic_is_read_from_its_beginning(
    offset: int,
) -> None:
    case = recreated(Case(may_lose=True), 20)
    verdict = await case.declared(PLACE, cursor_before(offset, 0, OLD))
    assert isinstance(verdict, Skip)
    assert isinstance(verdict.to, Cursor)
    assert (verdict.to, verdict.to.state) == (Cursor(-1), f"id {NEW}")
    assert await case.refused(PLACE, verdict.to) == Retry(
        hint="the partition has this offset", limit=40
    )


@pytest.mark.parametrize(("now", "position"), [("", OLD), (NEW, "")])
@in_virtual_time
async def test_where_an_id_is_not_known_nothing_is_a_loss(now: str, position: str) -> None:
    case = recreated(Case(), 20)
    case.cluster.ids["t"] = now
    verdict = await case.refused(PLACE, cursor_before(10, topic_id=position))
    assert verdict == Retry(hint="the partition has this offset", limit=40)


@pytest.mark.parametrize(("stop", "until"), [(50, 5), (3, 3)])
@in_virtual_time
async def test_a_bounded_read_of_another_topic_ends_where_that_ends_at_the_latest(
    stop: int, until: int
) -> None:
    (partition,) = ScriptedCluster().partitions
    stops = {partition: stop}
    case = recreated(Case(may_lose=True, stops=stops), 5)
    verdict = await case.declared(PLACE, cursor_before(10, 0, OLD))
    assert isinstance(verdict, Skip)
    assert verdict.to == Cursor(-1)
    assert stops == {partition: until}


@in_virtual_time
async def test_a_topic_that_was_deleted_may_come_back_with_any_id() -> None:
    case = Case(may_lose=True)
    case.cluster.logs.clear()
    case.cluster.ids["t"] = OLD
    verdict = await case.declared(TOPIC, cursor_before(0, topic_id=OLD))
    assert isinstance(verdict, Skip)
    assert isinstance(verdict.to, Cursor)
    assert (verdict.to, verdict.to.state) == (Cursor(-1), "")
