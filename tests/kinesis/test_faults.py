"""Each fault that the service can produce, end to end: what was put arrives, once and in order."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from fanout.errors import (
    MalformedEventError,
    SplitFailedError,
    SubscribeTimeoutError,
    SubscriptionSilentError,
)
from fanout.testing.faults import (
    CorruptFrame,
    CutConnection,
    EndEarly,
    IgnoreSubscribe,
    RaiseInStream,
    RefuseSubscribe,
    RevokeKey,
    Stall,
    StreamFault,
    SubscribeFault,
)
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream

RECOVERABLE: list[tuple[StreamFault, str]] = [
    (CutConnection(), "ClientPayloadError"),
    (CutConnection(clean=True), "MalformedEventError"),
    (EndEarly(), "SubscriptionEndedError"),
    (CorruptFrame(checksum="prelude"), "MalformedEventError"),
    (CorruptFrame(checksum="message"), "DamagedFrameError"),
    *(
        (RaiseInStream(code=code), code)
        for code in (
            "InternalFailureException",
            "KMSThrottlingException",
            "LimitExceededException",
            "ResourceInUseException",
        )
    ),
]


def small_events(records: int) -> KinesisRules:
    return replace(KinesisRules.fast(), max_event_records=records)


def kind(value: object) -> str | None:
    """Name a fault in a test's id, and nothing else."""
    return type(value).__name__ if isinstance(value, StreamFault | SubscribeFault) else None


@pytest.mark.fault("A subscription ends after its five minutes")
@pytest.mark.fault("The KMS key is throttled")
@pytest.mark.fault("A body ends inside a frame, although its transfer was whole")
@pytest.mark.parametrize("event", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize(("fault", "cause"), RECOVERABLE, ids=kind)
async def test_after_a_fault_in_a_subscription_every_record_arrives_once_and_in_order(
    stream: Stream, fault: StreamFault, cause: str, event: int
) -> None:
    stream.put(3)
    stream.inject(replace(fault, event=event))
    async with stream.reading() as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds == [cause]


# Where a timeout is short, a busy machine lets it pass once more often than the fault struck.


@pytest.mark.fault("A connection is open at one end alone")
@pytest.mark.parametrize("event", [1, 3])
async def test_after_a_silence_every_record_arrives_once_and_in_order(
    stream: Stream, event: int
) -> None:
    stream.put(3)
    stream.inject(Stall(event=event))
    async with stream.reading(silence_timeout=0.3) as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"SubscriptionSilentError"}


@pytest.mark.fault("User code blocks the event loop for a minute")
@pytest.mark.parametrize("rules", [small_events(1)], ids=["1 record an event"])
async def test_an_event_loop_blocked_by_user_code_is_not_taken_for_a_silent_service(
    stream: Stream,
) -> None:
    async with stream.reading(silence_timeout=3.5) as reader:
        stream.put(1)
        await reader.has(1)
        stream.put(3)
        time.sleep(4.5)  # noqa: ASYNC251 - it blocks the loop, as code that never awaits does
        await reader.has(4)
    assert reader.log == stream.log
    assert reader.causes == []


@pytest.mark.fault("A subscribe call is never answered")
@pytest.mark.parametrize("call", [1, 2])
async def test_after_calls_without_an_answer_every_record_arrives_once_and_in_order(
    stream: Stream, call: int
) -> None:
    stream.put(3)
    stream.inject(IgnoreSubscribe(call=call, times=2), EndEarly(event=3))
    async with stream.reading(subscribe_timeout=0.2) as reader:
        await reader.until(lambda: len(set(reader.kinds)) == 2)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"SubscribeTimeoutError", "SubscriptionEndedError"}
    assert stream.server.statistics().faults == {"IgnoreSubscribe": 2, "EndEarly": 1}


@pytest.mark.fault("A subscription fails after some events, several times in a row")
@pytest.mark.long
@pytest.mark.parametrize("event", [1, 3])
@pytest.mark.parametrize(
    "fault", [CutConnection(), EndEarly(), CorruptFrame(), RaiseInStream()], ids=kind
)
@pytest.mark.parametrize("rules", [small_events(2)], ids=["2 records an event"])
async def test_a_fault_in_the_middle_of_a_backlog_neither_skips_nor_repeats(
    stream: Stream, fault: StreamFault, event: int
) -> None:
    stream.put(20)
    stream.inject(replace(fault, event=event, times=2))
    async with stream.reading() as reader:
        await reader.has(20)
    assert reader.log == stream.log
    assert len(reader.causes) == 2


@pytest.mark.fault("The service throttles, or fails with a 5xx")
@pytest.mark.parametrize("call", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (RefuseSubscribe(status=500, code="InternalFailure"), "InternalFailure"),
        (RefuseSubscribe(status=503, html=True), "503"),
        (RefuseSubscribe(status=400, code="LimitExceededException"), "LimitExceededException"),
        (RefuseSubscribe(status=400, code="ResourceInUseException"), "ResourceInUseException"),
        (RefuseSubscribe(status=400, code="ThrottlingException"), "ThrottlingException"),
    ],
    ids=kind,
)
async def test_a_call_that_fails_for_now_is_made_again(
    stream: Stream, fault: SubscribeFault, cause: str, call: int
) -> None:
    stream.put(3)
    stream.inject(replace(fault, call=call, times=2), EndEarly(event=3))
    async with stream.reading() as reader:
        await reader.until(lambda: len(reader.causes) == 3)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert sorted(reader.kinds) == sorted([cause, cause, "SubscriptionEndedError"])
    assert stream.server.statistics().subscribe_calls == {FIRST: 4}


@pytest.mark.fault("Ends that are part of life are never counted as failures")
@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        EndEarly(),
        CutConnection(),
        CorruptFrame(),
        RaiseInStream(code="LimitExceededException"),
        RaiseInStream(code="ResourceInUseException"),
    ],
    ids=kind,
)
@pytest.mark.parametrize("rules", [small_events(1)], ids=["1 record an event"])
async def test_an_end_after_an_event_is_never_counted_as_a_failure(
    stream: Stream, fault: StreamFault
) -> None:
    stream.put(10)
    stream.inject(replace(fault, event=2, times=10))
    async with stream.reading(max_retries=0) as reader:
        await reader.has(10)
        await reader.until(lambda: len(reader.causes) >= 10)
        assert reader.failure is None
    assert reader.log == stream.log


async def test_a_silent_subscription_says_for_how_long(stream: Stream) -> None:
    stream.inject(Stall())
    async with stream.reading(silence_timeout=0.1) as reader:
        await reader.until(lambda: reader.causes)
    assert isinstance(reader.causes[0], SubscriptionSilentError)
    assert str(reader.causes[0]) == f"nothing came from {FIRST} for 0.1 s, not even a heartbeat"


async def test_a_call_without_an_answer_says_for_how_long(stream: Stream) -> None:
    stream.inject(IgnoreSubscribe())
    async with stream.reading(subscribe_timeout=0.1) as reader:
        await reader.until(lambda: reader.causes)
    assert isinstance(reader.causes[0], SubscribeTimeoutError)
    assert str(reader.causes[0]) == f"no answer to subscribing to {FIRST} within 0.1 s"


async def test_a_pause_that_is_shorter_than_the_silence_allowed_is_no_fault(
    stream: Stream,
) -> None:
    stream.put(1)
    stream.inject(Stall(seconds=0.2))
    async with stream.reading(silence_timeout=5) as reader:
        await reader.has(1)
    assert reader.causes == []


@pytest.mark.fault("A checksum is wrong")
async def test_damage_at_one_place_three_times_is_fatal(stream: Stream) -> None:
    stream.put(3)
    stream.inject(CorruptFrame(times=3))
    async with stream.reading() as reader:
        failure = await reader.failed()
    assert isinstance(failure, SplitFailedError)
    assert isinstance(failure.__cause__, MalformedEventError)
    assert re.fullmatch(
        rf"{FIRST} cannot go on: .* checksum .* \(the same error came 3 times at one position\)",
        str(failure),
    )
    assert stream.server.statistics().subscribe_calls == {FIRST: 3}


@pytest.mark.fault("The very first call is denied")
async def test_a_denied_first_call_is_fatal_and_the_only_one(stream: Stream) -> None:
    stream.inject(RefuseSubscribe(status=400, code="AccessDeniedException", times=9))
    async with stream.reading() as reader:
        failure = await reader.failed()
    assert re.search(r"AccessDeniedException.*\(grant kinesis:SubscribeToShard", str(failure))
    assert isinstance(failure.__cause__, ClientError)
    assert stream.server.statistics().subscribe_calls == {FIRST: 1}
    assert reader.causes == []


async def test_a_call_that_is_denied_later_is_made_again(stream: Stream) -> None:
    stream.put(3)
    stream.inject(
        EndEarly(event=2),
        RefuseSubscribe(status=400, code="AccessDeniedException", call=2, times=3),
    )
    async with stream.reading() as reader:
        await reader.until(lambda: len(reader.causes) == 4)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds == ["SubscriptionEndedError", *["AccessDeniedException"] * 3]


@pytest.mark.fault("What only a person can mend is an error in the log")
async def test_a_permission_that_is_lost_for_long_comes_back_by_itself(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put(3)
    denied = RefuseSubscribe(status=400, code="AccessDeniedException", call=2, times=20)
    stream.inject(EndEarly(event=2), denied)
    async with stream.reading() as reader:
        await reader.until(lambda: len(reader.causes) == 21)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    loud = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    *loud, others = loud
    assert len(loud) == 10
    assert others.endswith(
        "7 more subscriptions that wait for a person within 60 s: 7 of AccessDeniedException"
    )
    assert all("AccessDeniedException" in each for each in loud)
    assert all("(grant kinesis:SubscribeToShard on the consumer" in each for each in loud)


@pytest.mark.fault("Success and failure alternate")
async def test_permissions_that_are_lost_shortly_now_and_then_never_slow_the_stream_down(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.inject(
        EndEarly(event=2, times=2),
        *(
            RefuseSubscribe(status=400, code="AccessDeniedException", call=call, times=3)
            for call in (2, 6)
        ),
    )
    async with stream.reading() as reader:
        await reader.until(lambda: len(reader.causes) == 8)
        stream.put(3)
        await reader.has(3)
    assert reader.kinds.count("AccessDeniedException") == 6
    assert not [each for each in caplog.records if each.levelno == logging.ERROR]


KEY_STATES = [
    "KMSAccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
]


@pytest.mark.fault("The first frame of an answer is an exception, and no initial-response")
@pytest.mark.parametrize(
    "rules",
    [replace(KinesisRules.fast(), initial_response=False)],
    ids=["no initial-response"],
)
async def test_an_answer_whose_very_first_frame_is_an_exception_is_asked_for_again(
    stream: Stream,
) -> None:
    stream.put(3)
    stream.inject(RaiseInStream(times=2))
    async with stream.reading() as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert reader.kinds == ["InternalFailureException"] * 2


@pytest.mark.fault("Credentials expire during a subscription")
async def test_keys_that_expire_in_a_subscription_do_not_end_it(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading() as reader:
        await reader.has(3)
        stream.inject(RevokeKey(access_key="testing", code="ExpiredTokenException"))
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert stream.server.statistics().subscribe_calls == {FIRST: 1}


@pytest.mark.fault("The KMS key is throttled")
@pytest.mark.parametrize("code", KEY_STATES)
async def test_a_key_that_cannot_be_used_at_first_is_fatal(stream: Stream, code: str) -> None:
    stream.put(3)
    stream.inject(RaiseInStream(code=code))
    async with stream.reading() as reader:
        failure = await reader.failed()
    assert re.search(rf"{code}: .*\(.*the KMS key of the stream", str(failure))
    assert stream.server.statistics().subscribe_calls == {FIRST: 1}


@pytest.mark.fault("The KMS key is throttled")
@pytest.mark.long
@pytest.mark.parametrize("code", KEY_STATES)
async def test_a_key_that_is_fixed_later_is_waited_for_loudly_and_nothing_is_lost(
    stream: Stream, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put(3)
    async with stream.reading() as reader:
        await reader.has(3)
        stream.inject(RaiseInStream(code=code, event=None, times=4))
        await reader.until(lambda: len(reader.causes) == 4)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert set(reader.kinds) == {code}
    loud = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert len(loud) == 4
    assert all("waits for a person" in each and "the KMS key" in each for each in loud)


@pytest.mark.fault("Each kind of error has a budget of its own")
@pytest.mark.long
@pytest.mark.parametrize(
    "faults",
    [
        [EndEarly(event=None), RefuseSubscribe(status=400, code="Surprise", times=99)],
        [RaiseInStream(code="Surprise", event=None, times=99)],
    ],
    ids=["answer", "stream"],
)
async def test_a_code_that_nobody_knows_is_fatal_after_forty_tries(
    stream: Stream, faults: list[StreamFault | SubscribeFault]
) -> None:
    stream.put(3)
    async with stream.reading() as reader:
        await reader.has(3)
        stream.inject(*faults)
        failure = await reader.failed()
    assert re.search(r"Surprise.*\(the same error came 40 times .*please report it\)", str(failure))


@pytest.mark.fault("More failures in a row than are allowed end the stream")
async def test_max_retries_failures_in_a_row_are_fatal(stream: Stream) -> None:
    stream.inject(RefuseSubscribe(times=99))
    async with stream.reading(max_retries=3) as reader:
        failure = await reader.failed()
    assert "max_retries=3 attempts in a row made no progress" in str(failure)
    assert stream.server.statistics().subscribe_calls == {FIRST: 4}


@pytest.mark.fault("One shard fails")
@pytest.mark.parametrize("shards", [2])
async def test_a_fault_of_one_shard_leaves_the_others_alone(stream: Stream) -> None:
    stream.inject(RefuseSubscribe(shard=FIRST, times=5), CutConnection(shard=FIRST, times=5))
    stream.put(20)
    async with stream.reading() as reader:
        await reader.has(20)
    assert reader.log == stream.log
    assert stream.server.statistics().subscribe_calls["shardId-000000000001"] == 1


@pytest.mark.fault("A subscription fails after some events, several times in a row")
@pytest.mark.parametrize("shards", [3])
@pytest.mark.parametrize("rules", [small_events(3)], ids=["3 records an event"])
async def test_every_fault_at_once_loses_and_repeats_nothing(stream: Stream) -> None:
    stream.inject(
        *(CutConnection(event=n) for n in (1, 2, 3, 5)),
        *(EndEarly(event=n) for n in (2, 4)),
        *(RaiseInStream(event=n) for n in (1, 3)),
        Stall(event=2),
        CorruptFrame(event=6),
        RefuseSubscribe(call=2, times=2),
        IgnoreSubscribe(call=4),
    )
    async with stream.reading(silence_timeout=0.3, subscribe_timeout=0.3) as reader:
        for _ in range(10):
            stream.put(20)
            await reader.has(stream.put_in_all)
    assert reader.log == stream.log


@pytest.mark.fault("An old subscription still has events when its successor runs")
@pytest.mark.fault("Two readers take a shard over from each other")
async def test_two_streams_of_one_consumer_alternate_and_lose_nothing(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading() as one, stream.reading() as other:
        for taken in range(1, 4):
            await one.until(lambda: len(one.causes) >= taken)  # noqa: B023 - awaited at once
            await other.until(lambda: len(other.causes) >= taken)  # noqa: B023 - awaited at once
            stream.put(3)
        await one.has(12)
        await other.has(12)
    assert one.log == other.log == stream.log
    assert set(one.kinds + other.kinds) == {"ResourceInUseException"}


@pytest.mark.long
@pytest.mark.parametrize("rules", [KinesisRules()], ids=["the service's own"])
async def test_no_rule_of_the_service_is_broken_when_a_connection_is_cut(stream: Stream) -> None:
    stream.inject(CutConnection())
    stream.put(1)
    async with stream.reading() as reader:
        await reader.has(1)
    assert reader.log == stream.log
    assert stream.server.statistics().subscribe_calls == {FIRST: 2}
    assert stream.server.statistics().violations == {}
