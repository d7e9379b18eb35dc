"""Checks of answers that a compatible broker may give, and of calls that fail for a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InvalidProducerIdMapping,
    KafkaError,
    RequestTimedOutError,
)

from fanout.errors import ServiceError
from fanout.kafka.doctor.calls import DoctorCalls
from fanout.kafka.doctor.resources import (
    examine_group,
    examine_limits,
    examine_replicas,
    examine_retention,
    examine_share_group,
    examine_transactional_id,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.findings import Finding


class Refusing:
    """Calls that fail with an error."""

    connections = None

    def __init__(self, error: KafkaError) -> None:
        self.error = error

    async def coordinate(self, *_: object) -> Any:
        raise ServiceError(f"the call failed: {self.error}") from self.error


def reporting(**settings: str) -> Any:
    """Return calls to a broker that reports some settings alone."""
    calls = DoctorCalls.__new__(DoctorCalls)
    rows = [(key.replace("_", "."), value) for key, value in settings.items()]

    async def send(*_: object) -> Any:
        return SimpleNamespace(resources=[(0, "", 2, "t", rows)], topics=[])

    vars(calls)["send"] = send
    return calls


@pytest.mark.fault("DescribeConfigs")
@pytest.mark.parametrize(
    ("check", "missing"),
    [
        (lambda calls: examine_limits(calls, 1, 60), "transaction.max.timeout.ms"),
        (lambda calls: examine_replicas(calls, "t"), "min.insync.replicas"),
    ],
)
async def test_a_setting_that_is_not_reported_is_unknown(
    check: Callable[[Any], Awaitable[Finding]], missing: str
) -> None:
    found = await check(reporting())
    assert found.status == "unknown"
    assert f"the broker does not report {missing}" in found.detail
    assert "grant" not in found.advice


async def test_a_retention_that_is_not_reported_is_unknown() -> None:
    found, hours = await examine_retention(reporting(cleanup_policy="delete"), "t")
    assert (found.status, hours) == ("unknown", float("inf"))
    assert found.detail == "the broker does not report retention.ms, retention.bytes"


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestTimedOutError(), "unknown"), (GroupAuthorizationFailedError("g"), "problem")],
)
@pytest.mark.parametrize(
    "check",
    [
        lambda calls: examine_group(calls, "g"),
        lambda calls: examine_share_group(calls, "g", {"share.version": 1}),
    ],
)
async def test_the_advice_to_grant_is_for_a_refused_permission_alone(
    check: Callable[[Any], Awaitable[list[Finding]]], error: KafkaError, status: str
) -> None:
    (found,) = await check(Refusing(error))
    assert found.status == status
    assert ("grant" in found.advice) == (status == "problem")


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "ok"), (InvalidProducerIdMapping.errno, "ok"), (53, "problem"), (-1, "unknown")],
)
async def test_another_error_does_not_say_that_write_is_granted(code: int, status: str) -> None:
    async def coordinate(*_: object) -> Any:
        return SimpleNamespace(error_code=code)

    calls: Any = SimpleNamespace(coordinate=coordinate)
    assert (await examine_transactional_id(calls, "fanout")).status == status


async def test_a_coordinator_that_does_not_answer_is_unknown() -> None:
    calls: Any = Refusing(RequestTimedOutError())
    assert (await examine_transactional_id(calls, "fanout")).status == "unknown"
