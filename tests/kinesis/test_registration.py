from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fanout.core.backoff import BackoffOptions, FullJitter
from fanout.errors import ServiceError
from fanout.kinesis.registration import ensure_consumer
from fanout.kinesis.transport import ConsumerDescription, open_transport
from fanout.testing.kinesis_server import KinesisServer
from fanout.testing.rules import KinesisRules
from fanout.testing.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kinesis.transport import Transport

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
ARN = f"{STREAM_ARN}/consumer/etl:1"


def refused(code: str, message: str = "no") -> ClientError:
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    return ClientError(response, "RegisterStreamConsumer")


@dataclass
class Consumers:
    """A service that knows consumers by what they are at each second of virtual time.

    Args:
        created_in: Seconds that a registered consumer is CREATING.
        refusals: What the next calls of a method are refused with, by its name.
        status: What an existing consumer is for ever; None where there is none yet.
    """

    created_in: float = 0.0
    refusals: dict[str, list[str]] = field(default_factory=dict)
    status: str | None = None
    calls: list[tuple[float, str]] = field(default_factory=list)
    _active_at: float | None = None

    async def describe_consumer(
        self, *, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> ConsumerDescription:
        self._count("describe")
        assert (arn, stream_arn, name) in {(ARN, None, None), (None, STREAM_ARN, "etl")}
        if self.status is None and self._active_at is None:
            raise refused("ResourceNotFoundException", f"Consumer {arn or name} not found.")
        return self._description()

    async def register_consumer(self, stream_arn: str, name: str) -> ConsumerDescription:
        self._count("register")
        assert (stream_arn, name) == (STREAM_ARN, "etl")
        if self._active_at is not None:
            raise refused("ResourceInUseException")
        self._active_at = asyncio.get_running_loop().time() + self.created_in
        return self._description()

    def _count(self, method: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), method))
        if codes := self.refusals.get(method):
            raise refused(codes.pop(0))

    def _description(self) -> ConsumerDescription:
        now = asyncio.get_running_loop().time()
        creating = self._active_at is not None and now < self._active_at
        return ConsumerDescription(
            "etl", ARN, self.status or ("CREATING" if creating else "ACTIVE")
        )

    def called(self, method: str) -> int:
        return [each for _, each in self.calls].count(method)


async def ensured(service: Any, consumer: str = "etl", *, seed: int = 7) -> tuple[str, float]:
    """Return the ARN, and the virtual time that it took."""
    jitter = FullJitter(BackoffOptions(base=1.0, cap=5.0), Random(seed))  # noqa: S311 - jitter
    arn = await ensure_consumer(service, STREAM_ARN, consumer, jitter=jitter)
    return arn, asyncio.get_running_loop().time()


def test_a_consumer_that_is_missing_is_registered() -> None:
    service = Consumers()
    assert simulate(ensured, service) == (ARN, 0.0)
    assert [method for _, method in service.calls] == ["describe", "register"]


def test_a_consumer_that_exists_is_adopted() -> None:
    service = Consumers(status="ACTIVE")
    assert simulate(ensured, service) == (ARN, 0.0)
    assert service.called("register") == 0


def test_a_consumer_that_is_named_by_its_arn_is_used_as_it_is() -> None:
    assert simulate(ensured, Consumers(status="ACTIVE"), ARN) == (ARN, 0.0)


def test_an_arn_that_does_not_exist_is_named_and_not_registered() -> None:
    service = Consumers()
    with pytest.raises(ServiceError, match=rf"^the consumer '{ARN}' cannot be used: .*not found"):
        simulate(ensured, service, ARN)
    assert [method for _, method in service.calls] == ["describe"]


@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_is_waited_for_while_it_is_created(seed: int) -> None:
    service = Consumers(created_in=30.0)
    arn, seconds = simulate(ensured, service, seed=seed)
    assert arn == ARN
    assert 30.0 <= seconds <= 35.0
    assert service.called("register") == 1


def test_a_consumer_that_is_never_created_is_an_error_after_a_minute() -> None:
    async def main() -> float:
        with pytest.raises(ServiceError, match=r"'etl' .* not .* ACTIVE .* 60 s.*is CREATING"):
            await ensured(Consumers(created_in=3600.0))
        return asyncio.get_running_loop().time()

    assert simulate(main) == 60.0


def test_a_consumer_that_is_being_deleted_is_an_error_at_once() -> None:
    service = Consumers(status="DELETING")
    with pytest.raises(ServiceError, match=r"^the consumer 'etl' is being deleted; wait") as got:
        simulate(ensured, service)
    assert len(service.calls) == 1
    assert got.value.__cause__ is not got.value


@pytest.mark.parametrize("method", ["describe", "register"])
@pytest.mark.parametrize("code", ["LimitExceededException", "ThrottlingException"])
def test_a_throttled_call_is_repeated(method: str, code: str) -> None:
    service = Consumers(refusals={method: [code] * 3})
    assert simulate(ensured, service)[0] == ARN
    assert service.called(method) >= 4


def test_a_limit_that_stays_is_told_by_name() -> None:
    service = Consumers(refusals={"register": ["LimitExceededException"] * 1000})
    with pytest.raises(ServiceError, match=r"'etl' .* 60 s.*LimitExceededException"):
        simulate(ensured, service)


def test_a_name_that_somebody_else_registers_at_the_same_time_is_adopted() -> None:
    async def main() -> None:
        service = Consumers(created_in=2.0)
        async with asyncio.TaskGroup() as both:
            one, other = (both.create_task(ensured(service, seed=seed)) for seed in (1, 2))
        assert one.result()[0] == other.result()[0] == ARN

    simulate(main)


def test_a_registration_that_came_too_late_is_not_an_error() -> None:
    service = Consumers(refusals={"register": ["ResourceInUseException"]})
    assert simulate(ensured, service)[0] == ARN


def test_a_missing_permission_names_what_to_grant() -> None:
    service = Consumers(refusals={"describe": ["AccessDeniedException"]})
    with pytest.raises(ServiceError, match=r"grant .*kinesis:DescribeStreamConsumer") as caught:
        simulate(ensured, service)
    assert isinstance(caught.value.__cause__, ClientError)
    assert len(service.calls) == 1


def test_the_permission_to_register_is_named() -> None:
    service = Consumers(refusals={"register": ["AccessDeniedException"]})
    with pytest.raises(ServiceError, match="kinesis:RegisterStreamConsumer"):
        simulate(ensured, service)


def test_cancellation_leaves_nothing_behind() -> None:
    async def main() -> None:
        task = asyncio.create_task(ensured(Consumers(created_in=30.0)))
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    simulate(main)  # it checks for tasks and timers


@pytest.fixture
def slow_kinesis() -> Iterator[KinesisServer]:
    """An embedded Kinesis whose consumers are CREATING at first."""
    with KinesisServer(KinesisRules(consumer_creating=0.2)) as server:
        yield server


async def test_two_transports_register_one_name_at_once(
    slow_kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slow_kinesis.environment.items():
        monkeypatch.setenv(name, value)
    stream_arn = slow_kinesis.create_stream("orders")
    fast = BackoffOptions(base=0.01, cap=0.05)

    async def ensure(transport: Transport, seed: int) -> str:
        jitter = FullJitter(fast, Random(seed))  # noqa: S311 - jitter
        return await ensure_consumer(transport, stream_arn, "etl", jitter=jitter)

    async with open_transport(stream="orders") as one, open_transport(stream="orders") as other:
        async with asyncio.TaskGroup() as both:
            tasks = [both.create_task(ensure(t, seed)) for seed, t in enumerate((one, other))]
        description = await one.describe_consumer(stream_arn=stream_arn, name="etl")
    assert {task.result() for task in tasks} == {description.arn}
    assert description.status == "ACTIVE"
