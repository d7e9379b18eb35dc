"""Errors of admin requests about a share group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, IncompatibleBrokerVersion

from fanout.kafka.partitions import Partition
from fanout.kafka.share.group_admin import ShareGroupAdmin, StartOffset


class SameResponse:
    """Connections to a broker with the same response to every request but FindCoordinator."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def add_broker(self, *_: object) -> None:
        pass

    async def send_to_any(self, request: Any) -> Any:
        if type(request).__name__ == "FindCoordinatorRequest":
            return SimpleNamespace(error_code=0, coordinator_id=1, host="127.0.0.1", port=1)
        return await self.send(1, request)

    async def send(self, _: int, __: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def calls(**answer: Any) -> ShareGroupAdmin:
    return ShareGroupAdmin(cast("Any", SameResponse(SimpleNamespace(**answer))), "billing")


async def test_a_missing_permission_is_named() -> None:
    about_settings = calls(resources=[(30, "", 32, "billing", [])])
    with pytest.raises(
        GroupAuthorizationFailedError, match=r"grant .* DESCRIBE_CONFIGS on the gro"
    ):
        await about_settings.settings()
    with pytest.raises(GroupAuthorizationFailedError, match="ALTER_CONFIGS on the group billing"):
        await calls(resources=[(30, "", 32, "billing")]).alter({"share.isolation.level": "x"})
    with pytest.raises(GroupAuthorizationFailedError, match=r"grant .* DESCRIBE on the group bil"):
        await calls(API_KEY=90, groups=[("billing", [], 30, None, {})]).start_offsets()
    with pytest.raises(GroupAuthorizationFailedError, match=r"grant .* DESCRIBE on the group bil"):
        await calls(API_KEY=77, groups=[(30, "", "billing", "", 0, 0, "", [], 0, {})]).members()


async def test_brokers_of_before_share_groups_say_what_they_need() -> None:
    old = ShareGroupAdmin(
        cast("Any", SameResponse(IncompatibleBrokerVersion("unknown"))), "billing"
    )
    with pytest.raises(IncompatibleBrokerVersion, match="share groups: those need"):
        await old.start_offsets()
    with pytest.raises(IncompatibleBrokerVersion, match="share groups: those need"):
        await calls(resources=[(0, "", 32, "billing", [("consumer.x", "1")])]).settings()


@pytest.mark.parametrize(
    ("fields", "beginning"),
    [((0, 7, 0), (7, None)), ((0, 7, 0, 3), (7, 3)), ((0, -1, 0, -1), (None, None))],
)
async def test_where_a_group_begins_is_read_with_the_lag_and_without(
    fields: tuple[int, ...], beginning: tuple[int | None, int | None]
) -> None:
    refused = (1, 5, 0, *fields[3:], 3, "", {})
    partitions: list[Any] = [(*fields, 0, None, {}), refused]
    topics: list[Any] = [("orders", bytes(16), partitions, {})]
    found = await calls(API_KEY=90, groups=[("billing", topics, 0, None, {})]).start_offsets()
    assert found == {Partition("orders", 0): StartOffset("00" * 16, *beginning)}


async def test_a_group_that_nobody_has_joined_begins_nowhere() -> None:
    assert await calls(API_KEY=90, groups=[("billing", [], 69, "", {})]).start_offsets() == {}
