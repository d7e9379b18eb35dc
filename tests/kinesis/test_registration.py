from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import ServiceError
from fanout.kinesis.aws.api import ConsumerDescription
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.registration import ConsumerRegistration
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.virtual_time.loop import simulate
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fanout.kinesis.aws.api import KinesisClient

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
ARN = f"{STREAM_ARN}/consumer/etl:1"

CREATED = datetime(2026, 11, 20, 8, 0, 1, tzinfo=UTC)


def now() -> float:
    return asyncio.get_running_loop().time()


def refused(
    code: str, message: str = "no", *, operation: str = "RegisterStreamConsumer"
) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    return ClientError(response, operation)


@dataclass
class Consumers:
    """A service that knows consumers by what they are at each second of virtual time.

    Args:
        created_in: Seconds that a registered consumer is CREATING.
        deleted_in: The second until which an older consumer of that name is DELETING.
        refusals: The errors of the next calls of a method, by its name.
        status: The constant status of an existing consumer; None if there is none yet.
        deregistering: Seconds that a call to deregister takes.
        tags: The tags that it was registered with.
    """

    created_in: float = 0.0
    deleted_in: float | None = None
    refusals: dict[str, list[str]] = field(default_factory=dict)
    status: str | None = None
    deregistering: float = 0.0
    tags: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[float, str]] = field(default_factory=list)
    _active_at: float | None = None

    async def describe_consumer(
        self, *, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> ConsumerDescription:
        self._count("describe")
        assert (arn, stream_arn, name) in {(ARN, None, None), (None, STREAM_ARN, "etl")}
        if self.status is None and self._active_at is None and not self._is_deleting:
            raise refused("ResourceNotFoundException", f"Consumer {arn or name} not found.")
        return self._description()

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str]
    ) -> ConsumerDescription:
        self._count("register")
        assert (stream_arn, name) == (STREAM_ARN, "etl")
        if self._active_at is not None or self._is_deleting:
            raise refused("ResourceInUseException")
        self.tags = dict(tags)
        self._active_at = now() + self.created_in
        return self._description()

    async def deregister_consumer(self, arn: str) -> None:
        self._count("deregister")
        await asyncio.sleep(self.deregistering)
        assert arn == ARN
        if self._active_at is None:
            raise refused("ResourceNotFoundException")
        self._active_at = None

    @property
    def _is_deleting(self) -> bool:
        return self.deleted_in is not None and now() < self.deleted_in

    def _count(self, method: str) -> None:
        self.calls.append((now(), method))
        if codes := self.refusals.get(method):
            raise refused(codes.pop(0), operation=f"{method.title()}StreamConsumer")

    def _description(self) -> ConsumerDescription:
        creating = self._active_at is not None and now() < self._active_at
        status = "DELETING" if self._is_deleting else "CREATING" if creating else "ACTIVE"
        return ConsumerDescription("etl", ARN, self.status or status, CREATED)

    def called(self, method: str) -> int:
        return [each for _, each in self.calls].count(method)


async def ensured(service: Any, consumer: str = "etl", *, seed: int = 7) -> tuple[str, float]:
    """Return the ARN, and the virtual time that it took."""
    return await registration(service, consumer, seed=seed).ensure(), now()


def registration(service: Any, consumer: str = "etl", *, seed: int = 7) -> ConsumerRegistration:
    jitter = FullJitter(Backoff(base=1.0, cap=5.0), Random(seed))
    return ConsumerRegistration(
        service, STREAM_ARN, consumer, jitter=jitter, tags={"team": "orders"}
    )


@pytest.mark.fault("The consumer does not exist")
def test_a_consumer_that_is_missing_is_registered() -> None:
    service = Consumers()
    assert simulate(ensured, service) == (ARN, 0.0)
    assert [method for _, method in service.calls] == ["describe", "register"]


@pytest.mark.fault("The consumer exists")
def test_a_consumer_that_exists_is_adopted() -> None:
    service = Consumers(status="ACTIVE")
    assert simulate(ensured, service) == (ARN, 0.0)
    assert service.called("register") == 0


def test_a_consumer_that_is_named_by_its_arn_is_used_as_it_is() -> None:
    assert simulate(ensured, Consumers(status="ACTIVE"), ARN) == (ARN, 0.0)


@pytest.mark.fault("The consumer does not exist")
def test_an_arn_that_does_not_exist_is_named_and_not_registered() -> None:
    service = Consumers()
    with pytest.raises(ServiceError, match=rf"^the consumer '{ARN}' cannot be used: .*not found"):
        simulate(ensured, service, ARN)
    assert [method for _, method in service.calls] == ["describe"]


@pytest.mark.fault("The consumer is being created, here or by another client")
@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_is_waited_for_while_it_is_created(seed: int) -> None:
    service = Consumers(created_in=30.0)
    arn, seconds = simulate(ensured, service, seed=seed)
    assert arn == ARN
    assert 30.0 <= seconds <= 35.0
    assert service.called("register") == 1


@pytest.mark.fault("The consumer is being created, here or by another client")
def test_a_consumer_that_somebody_else_creates_is_adopted_after_five_looks() -> None:
    class FiveLooks(Consumers):
        async def describe_consumer(self, **named: str | None) -> ConsumerDescription:
            found = await super().describe_consumer(**named)
            status = "CREATING" if self.called("describe") < 5 else "ACTIVE"
            return replace(found, status=status)

    async def main() -> None:
        service = FiveLooks(status="CREATING")
        somebodys = registration(service)
        assert await somebodys.ensure() == ARN
        await somebodys.undo()
        assert [method for _, method in service.calls] == ["describe"] * 5

    simulate(main)


def test_a_service_that_does_not_answer_about_a_consumer_is_told_after_a_minute() -> None:
    class Silent(Consumers):
        async def describe_consumer(self, **_: str | None) -> ConsumerDescription:
            await asyncio.sleep(3600)
            raise AssertionError

    async def main() -> float:
        with pytest.raises(ServiceError, match=r"within 60 s \(the service did not answer\)"):
            await ensured(Silent())
        return now()

    assert simulate(main) == 60.0


@pytest.mark.fault("The consumer is never ready")
def test_a_consumer_that_is_never_created_is_an_error_after_a_minute() -> None:
    async def main() -> float:
        with pytest.raises(ServiceError, match=r"'etl' .* not .* ACTIVE .* 60 s.*is CREATING"):
            await ensured(Consumers(created_in=3600.0))
        return now()

    assert simulate(main) == 60.0


def test_the_tags_are_set_at_registration() -> None:
    service = Consumers()
    simulate(ensured, service)
    assert service.tags == {"team": "orders"}


@pytest.mark.fault("The consumer is being deleted")
@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_that_is_being_deleted_is_waited_for_and_registered_again(seed: int) -> None:
    service = Consumers(deleted_in=20.0)
    arn, seconds = simulate(ensured, service, seed=seed)
    assert arn == ARN
    assert 20.0 <= seconds <= 25.0
    assert service.called("register") == 1


def test_deletion_and_creation_together_take_a_minute_at_most() -> None:
    async def main() -> float:
        with pytest.raises(ServiceError, match=r"'etl' .* not .* ACTIVE .* 60 s.*is CREATING"):
            await ensured(Consumers(deleted_in=40.0, created_in=40.0))
        return now()

    assert simulate(main) == 60.0


def test_a_consumer_that_is_never_deleted_is_an_error_after_a_minute() -> None:
    with pytest.raises(ServiceError, match=r"'etl' .* not .* ACTIVE .* 60 s.*is DELETING"):
        simulate(ensured, Consumers(status="DELETING"))


@pytest.mark.fault("The consumer is being deleted")
def test_an_arn_that_is_being_deleted_is_an_error_at_once() -> None:
    service = Consumers(status="DELETING")
    with pytest.raises(ServiceError, match=rf"^the consumer {ARN} is being deleted; use another"):
        simulate(ensured, service, ARN)
    assert len(service.calls) == 1


@in_virtual_time
async def test_a_consumer_that_was_registered_here_is_deregistered() -> None:
    service = Consumers()
    mine = registration(service)
    await mine.ensure()
    await mine.undo()
    assert service.called("deregister") == 1


@pytest.mark.fault("The consumer exists")
@in_virtual_time
async def test_a_consumer_that_was_adopted_is_not_deregistered() -> None:
    service = Consumers(status="ACTIVE")
    mine = registration(service)
    await mine.ensure()
    await mine.undo()
    assert service.called("deregister") == 0


def test_a_consumer_that_is_gone_already_is_deregistered_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        mine = registration(Consumers(refusals={"deregister": ["ResourceNotFoundException"]}))
        await mine.ensure()
        await mine.undo()

    simulate(main)
    assert caplog.records == []


@in_virtual_time
async def test_a_throttled_deregistration_is_repeated() -> None:
    service = Consumers(refusals={"deregister": ["LimitExceededException"] * 2})
    mine = registration(service)
    await mine.ensure()
    await mine.undo()
    assert service.called("deregister") == 3


@pytest.mark.fault("Deregistering hangs or is refused")
def test_a_deregistration_that_fails_is_told_to_the_log_and_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        mine = registration(Consumers(refusals={"deregister": ["AccessDeniedException"]}))
        await mine.ensure()
        await mine.undo()

    simulate(main)
    assert f"the consumer {ARN} may stay registered" in caplog.text
    assert "AccessDeniedException" in caplog.text


@pytest.mark.fault("Deregistering hangs or is refused")
def test_a_deregistration_takes_10_seconds_at_most(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> float:
        mine = registration(Consumers(deregistering=3600.0))
        await mine.ensure()
        await mine.undo()
        return now()

    assert simulate(main) == 10.0
    assert "cannot be deregistered within 10 s" in caplog.text


@in_virtual_time
async def test_a_consumer_that_is_still_created_when_its_stream_is_cancelled_is_deregistered() -> (
    None
):
    service = Consumers(created_in=30.0)
    mine = registration(service)
    task = asyncio.create_task(mine.ensure())
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await mine.undo()
    assert service.called("deregister") == 1


def test_a_deregistration_that_is_cancelled_ends_at_once_and_is_told_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> float:
        mine = registration(Consumers(deregistering=5.0))
        await mine.ensure()
        task = asyncio.create_task(mine.undo())
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return now()

    assert simulate(main) == 2.0
    assert "may stay registered" in caplog.text


@pytest.mark.fault("Describing")
@pytest.mark.parametrize("method", ["describe", "register"])
@pytest.mark.parametrize("code", ["LimitExceededException", "ThrottlingException"])
def test_a_throttled_call_is_repeated(method: str, code: str) -> None:
    service = Consumers(refusals={method: [code] * 3})
    assert simulate(ensured, service)[0] == ARN
    assert service.called(method) >= 4


@pytest.mark.fault("Describing")
def test_a_limit_that_stays_is_told_by_name() -> None:
    service = Consumers(refusals={"register": ["LimitExceededException"] * 1000})
    with pytest.raises(ServiceError, match=r"'etl' .* 60 s.*LimitExceededException") as error:
        simulate(ensured, service)
    assert "its maximum number of consumers" in str(error.value)
    assert "mode='polling'" in str(error.value)


def test_polling_is_named_only_where_the_quota_is_reached() -> None:
    service = Consumers(refusals={"register": ["ThrottlingException"] * 1000})
    with pytest.raises(ServiceError) as error:
        simulate(ensured, service)
    assert "polling" not in str(error.value)


@pytest.mark.fault("Two processes register the same name at once")
@in_virtual_time
async def test_a_name_that_somebody_else_registers_at_the_same_time_is_adopted() -> None:
    service = Consumers(created_in=2.0)
    async with asyncio.TaskGroup() as both:
        one, other = (both.create_task(ensured(service, seed=seed)) for seed in (1, 2))
    assert one.result()[0] == other.result()[0] == ARN


def test_a_registration_that_came_too_late_is_not_an_error() -> None:
    service = Consumers(refusals={"register": ["ResourceInUseException"]})
    assert simulate(ensured, service)[0] == ARN


@pytest.mark.fault("A permission is missing: the error names the action to grant")
def test_a_missing_permission_names_what_to_grant() -> None:
    service = Consumers(refusals={"describe": ["AccessDeniedException"]})
    with pytest.raises(ServiceError, match=r"grant .*kinesis:DescribeStreamConsumer") as caught:
        simulate(ensured, service)
    assert isinstance(caught.value.__cause__, ClientError)
    assert len(service.calls) == 1


@pytest.mark.fault("A permission is missing: the error names the action to grant")
def test_the_permission_to_register_is_named() -> None:
    service = Consumers(refusals={"register": ["AccessDeniedException"]})
    with pytest.raises(ServiceError, match="kinesis:RegisterStreamConsumer"):
        simulate(ensured, service)


@in_virtual_time
async def test_cancellation_leaves_nothing_behind() -> None:
    task = asyncio.create_task(ensured(Consumers(created_in=30.0)))
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
def slow_kinesis() -> Iterator[KinesisServer]:
    """An embedded Kinesis whose consumers are CREATING at first."""
    with KinesisServer(KinesisRules(consumer_creating=0.2)) as server:
        yield server


@pytest.mark.fault("Two processes register the same name at once")
async def test_two_transports_register_one_name_at_once(
    slow_kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slow_kinesis.environment.items():
        monkeypatch.setenv(name, value)
    stream_arn = slow_kinesis.create_stream("orders")
    fast = Backoff(base=0.01, cap=0.05)

    async def ensure(kinesis: KinesisClient, seed: int) -> str:
        jitter = FullJitter(fast, Random(seed))
        return await ConsumerRegistration(
            kinesis, stream_arn, "etl", jitter=jitter, tags={}
        ).ensure()

    async with (
        open_kinesis_client(stream="orders") as one,
        open_kinesis_client(stream="orders") as other,
    ):
        async with asyncio.TaskGroup() as both:
            tasks = [both.create_task(ensure(t, seed)) for seed, t in enumerate((one, other))]
        description = await one.describe_consumer(stream_arn=stream_arn, name="etl")
    assert {task.result() for task in tasks} == {description.arn}
    assert description.status == "ACTIVE"
