from __future__ import annotations

import asyncio
import math
import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import aioboto3
import aiobotocore.session
import pytest
from aiobotocore.credentials import AioCredentialResolver

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.kinesis import diagnose
from fanout.testing.faults import RaiseInStream, RefuseCall, RefuseSubscribe, Stall
from fanout.testing.kinesis.credentials import REGION
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream, client, eventually

if TYPE_CHECKING:
    from fanout.core.findings import Finding
    from fanout.core.positions import Position

SECOND = "shardId-000000000001"
CANARY = "canary-7Zq1-secret"
SUBSCRIBE = "kinesis:SubscribeToShard"
HOUR = 3_600_000


def register(stream: Stream, name: str = "etl") -> str:
    with client(stream) as opened:
        answer = opened.register_stream_consumer(StreamARN=stream.arn, ConsumerName=name)
        return str(answer["Consumer"]["ConsumerARN"])


async def examine(stream: Stream, /, **options: Any) -> dict[str, Finding]:
    """The findings by check; of several of one check, the first."""
    asked = {name: options.pop(name) for name in ("checkpoint", "subscribe") if name in options}
    found = await diagnose(stream.source(**options), **asked)
    return {finding.check: finding for finding in reversed(found)}


async def test_a_stream_that_can_be_read_has_nothing_to_be_done(stream: Stream) -> None:
    register(stream)
    found = await diagnose(stream.source())
    assert [finding.check for finding in found] == [
        "credentials",
        "clock",
        "kinesis:DescribeStreamSummary",
        "kinesis:ListShards",
        "kinesis:DescribeStreamConsumer",
        SUBSCRIBE,
        "HTTP version",
        "consumer",
        "consumer quota",
        "price",
        "shards",
        "stream",
        "distribution",
        "record size",
        "encryption",
        "open files",
        "memory",
    ]
    assert [each.check for each in found if each.status != "ok"] == [SUBSCRIBE]
    assert [each.check for each in found if each.advice] == [SUBSCRIBE]


async def test_nothing_is_registered_and_nothing_is_subscribed(stream: Stream) -> None:
    await examine(stream)
    await examine(stream, subscribe=True)
    assert stream.server.statistics().subscribe_calls == {}
    assert (await examine(stream))["consumer"].detail == "etl is missing"


async def test_the_version_of_http_is_named_where_the_service_promises_another(
    stream: Stream,
) -> None:
    register(stream)
    found = (await examine(stream))["HTTP version"]
    assert found.status == "ok"
    assert "HTTP/1.1" in found.detail
    assert "HTTP/2" in found.detail
    assert "HTTP version" not in await examine(stream, mode="polling", consumer=None)
    subscribed = await examine(stream, http_version=2, subscribe=True)
    assert subscribed["HTTP version"].detail.startswith("subscriptions use HTTP/2")
    assert subscribed[SUBSCRIBE].status == "ok"


async def test_a_consumer_of_another_accounts_stream_is_a_problem(stream: Stream) -> None:
    other = stream.arn.replace("123456789012", "222222222222")
    found = (await examine(stream, consumer=f"{other}/consumer/etl:1"))["consumer"]
    assert found.status == "problem"
    assert f"is not registered on {stream.arn}" in found.detail


async def test_a_running_reader_is_left_alone(stream: Stream) -> None:
    async with stream.reading() as reader:
        stream.put(1)
        await reader.has(1)
        assert (await examine(stream))[SUBSCRIBE].status == "unknown"
        stream.put(1)
        await reader.has(2)
        assert reader.causes == []


# Credentials


def bare_session(**options: str) -> aioboto3.Session:
    nothing = aiobotocore.session.AioSession()
    nothing.register_component("credential_provider", AioCredentialResolver(providers=[]))
    return aioboto3.Session(botocore_session=nothing, **options)


async def test_the_provider_of_the_credentials_is_named(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    found = await examine(stream, session=None, region=REGION)
    assert found["credentials"].detail == "from env, for us-east-1; the service accepts them"


async def test_missing_credentials_are_the_only_finding(stream: Stream) -> None:
    (found,) = await diagnose(stream.source(session=bare_session(region_name=REGION)))
    assert (found.check, found.status) == ("credentials", "problem")
    assert "no AWS credentials were found" in found.detail


async def test_a_missing_region_is_the_only_finding(stream: Stream) -> None:
    (found,) = await diagnose(stream.source(session=bare_session()))
    assert (found.check, found.status) == ("credentials", "problem")
    assert "no AWS region is known" in found.detail


async def test_credentials_that_are_refused_end_the_examination(stream: Stream) -> None:
    text = f"The Canonical String for this request should have been x-amz-security-token:{CANARY}"
    stream.inject(
        RefuseCall(
            action="DescribeStreamSummary", code="InvalidSignatureException", message=text, times=9
        )
    )
    found = await examine(stream)
    assert found["credentials"].status == "problem"
    assert "refused as InvalidSignatureException" in found["credentials"].detail
    assert "kinesis:ListShards" not in found
    assert CANARY not in repr(found)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalFailure"), (400, "LimitExceededException")]
)
async def test_an_error_of_the_service_says_nothing_of_the_credentials(
    stream: Stream, status: int, code: str
) -> None:
    stream.server.inject(
        RefuseCall(action="DescribeStreamSummary", status=status, code=code, times=9)
    )
    assert (await examine(stream))["credentials"].status == "unknown"


async def test_an_endpoint_that_does_not_answer_is_a_problem(
    stream: Stream, unused_tcp_port: int
) -> None:
    found = await examine(stream, endpoint_url=f"http://127.0.0.1:{unused_tcp_port}")
    assert found["credentials"].status == "unknown"
    assert found["kinesis:DescribeStreamSummary"].status == "problem"
    assert found["kinesis:DescribeStreamSummary"].advice.startswith("check the region")
    assert "kinesis:ListShards" not in found


# The clock


def shift_clock(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Set the Date header of every answer."""

    def date(**_: object) -> str:
        return format_datetime(datetime.now(UTC) + by, usegmt=True)

    monkeypatch.setattr("fanout.testing.wsgi_call.formatdate", date)


async def test_a_clock_that_is_right_is_fine(stream: Stream) -> None:
    assert (await examine(stream))["clock"].status == "ok"


@pytest.mark.long
@pytest.mark.parametrize(("minutes", "status"), [(2, "warning"), (-6, "problem")])
async def test_a_clock_is_compared_with_the_services(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, minutes: int, status: str
) -> None:
    shift_clock(monkeypatch, timedelta(minutes=minutes))
    found = (await examine(stream))["clock"]
    assert found.status == status
    assert ("behind" if minutes > 0 else "ahead of") in found.detail


@pytest.mark.fault("The clock of the host is five minutes off, either way")
async def test_a_refused_signature_tells_the_clock_as_well(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift_clock(monkeypatch, timedelta(minutes=20))
    stream.inject(
        RefuseCall(action="DescribeStreamSummary", code="InvalidSignatureException", times=9)
    )
    found = await examine(stream)
    assert (found["clock"].status, found["credentials"].status) == ("problem", "problem")


# Permissions


@pytest.mark.parametrize(
    "action", ["DescribeStreamSummary", "ListShards", "DescribeStreamConsumer"]
)
async def test_a_refused_call_names_the_action_to_grant(stream: Stream, action: str) -> None:
    consumer = register(stream)
    stream.inject(RefuseCall(action=action, message="User: x is not authorized", times=9))
    found = await examine(stream, stream=stream.arn, consumer=consumer)
    refused = [check for check, finding in found.items() if finding.status == "problem"]
    assert refused == [f"kinesis:{action}"]
    assert found[refused[0]].detail == "refused as AccessDeniedException: User: x is not authorized"
    assert found[refused[0]].advice.startswith(f"grant kinesis:{action} on the ")
    assert "`fanout iam-policy`" in found[refused[0]].advice
    assert found["credentials"].status == "ok"


async def test_a_consumers_name_needs_the_arn_of_its_stream(stream: Stream) -> None:
    stream.inject(RefuseCall(action="DescribeStreamSummary", times=9))
    found = await examine(stream)
    assert found["kinesis:DescribeStreamConsumer"].status == "unknown"
    assert "consumer" not in found


@pytest.mark.parametrize("code", ["LimitExceededException", "InternalFailure"])
async def test_a_call_that_may_pass_another_time_is_unknown(stream: Stream, code: str) -> None:
    register(stream)
    stream.inject(RefuseCall(action="ListShards", code=code, times=9))
    found = (await examine(stream))["kinesis:ListShards"]
    assert (found.status, found.advice) == ("unknown", "try again in a minute")


async def test_a_stream_that_is_not_there_is_the_problem(stream: Stream) -> None:
    found = await examine(stream, stream="payments")
    assert found["stream"].status == "problem"
    assert found["stream"].detail == "there is no stream payments in us-east-1 in this account"
    assert "kinesis:ListShards" not in found


# Subscribing


async def test_a_subscription_is_tried_where_that_is_asked_for(stream: Stream) -> None:
    register(stream)
    assert (await examine(stream, subscribe=True))[SUBSCRIBE].status == "ok"
    assert stream.server.statistics().subscribe_calls == {FIRST: 1}
    await eventually(lambda: stream.server.statistics().open_subscriptions == 0)


async def test_an_open_shard_is_subscribed_to(stream: Stream) -> None:
    register(stream)
    stream.server.split_shard("orders", FIRST)
    await examine(stream, subscribe=True)
    assert FIRST not in stream.server.statistics().subscribe_calls


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        (
            RefuseSubscribe(status=400, code="AccessDeniedException"),
            "problem",
            f"grant {SUBSCRIBE}",
        ),
        (RefuseSubscribe(status=400, code="ResourceInUseException"), "ok", "subscribed just now"),
        (
            RaiseInStream(code="KMSDisabledException"),
            "problem",
            "key of the stream is disabled",
        ),
        (RefuseSubscribe(status=500), "unknown", "try again"),
    ],
    ids=["denied", "in use", "key", "internal"],
)
async def test_a_subscription_that_fails_is_told_apart(
    stream: Stream, fault: Any, status: str, message: str
) -> None:
    register(stream)
    stream.inject(fault)
    found = (await examine(stream, subscribe=True))[SUBSCRIBE]
    assert found.status == status
    assert message in f"{found.detail} {found.advice}"


# Polling


async def test_polling_is_tried_and_needs_no_consumer(stream: Stream) -> None:
    found = await examine(stream, consumer=None, mode="polling")
    assert [check for check, finding in found.items() if finding.status != "ok"] == []
    assert {"kinesis:GetShardIterator", "kinesis:GetRecords"} < found.keys()
    assert [check for check in found if "onsumer" in check or check in {SUBSCRIBE, "price"}] == []


@pytest.mark.parametrize(
    ("action", "statuses"),
    [("GetShardIterator", ["problem", "unknown"]), ("GetRecords", ["ok", "problem"])],
)
async def test_a_refused_poll_is_a_problem_where_polling_is_meant(
    stream: Stream, action: str, statuses: list[str]
) -> None:
    stream.inject(RefuseCall(action=action, times=9))
    found = await examine(stream, consumer=None, mode="polling")
    tried = [found[f"kinesis:{each}"] for each in ("GetShardIterator", "GetRecords")]
    assert [each.status for each in tried] == statuses
    assert f"grant kinesis:{action} on the stream" in "".join(each.advice for each in tried)


async def test_a_key_of_ones_own_is_tried_by_a_poll(stream: Stream) -> None:
    encrypt(stream)
    polling = await examine(stream, consumer=None, mode="polling")
    assert polling["encryption"].status == "ok"
    stream.inject(RefuseCall(action="GetRecords", code="KMSAccessDeniedException"))
    refused = await examine(stream, consumer=None, mode="polling")
    assert refused["encryption"].status == "unknown"
    assert "kms:Decrypt" in refused["kinesis:GetRecords"].advice


async def test_polling_without_a_known_stream_is_unknown(stream: Stream) -> None:
    stream.inject(RefuseCall(action="DescribeStreamSummary", times=9))
    found = await examine(stream, consumer=None, mode="polling")
    assert found["kinesis:GetRecords"].status == "unknown"


# The consumer and the stream


def encrypt(stream: Stream) -> None:
    with client(stream) as opened:
        opened.start_stream_encryption(
            StreamName="orders", EncryptionType="KMS", KeyId="alias/orders"
        )


async def test_a_consumer_that_is_missing_is_registered_later(stream: Stream) -> None:
    found = await examine(stream)
    assert (found["consumer"].status, found["consumer"].detail) == ("warning", "etl is missing")
    assert found["kinesis:DescribeStreamConsumer"].status == "ok"


async def test_a_consumer_that_is_gone_by_its_arn_is_a_problem(stream: Stream) -> None:
    arn = f"{stream.arn}/consumer/etl:1"
    assert (await examine(stream, consumer=arn))["consumer"].status == "problem"


@pytest.mark.parametrize("rules", [KinesisRules(consumer_creating=600)])
async def test_a_consumer_in_creation_is_waited_for(stream: Stream) -> None:
    register(stream)
    found = await examine(stream, subscribe=True)
    assert found["consumer"].status == "warning"
    assert found[SUBSCRIBE].status == "unknown"


async def test_a_full_stream_has_no_room_for_another_consumer(stream: Stream) -> None:
    for number in range(20):
        register(stream, f"other-{number}")
    assert (await examine(stream))["consumer quota"].status == "warning"
    assert (await examine(stream, consumer="other-1"))["consumer quota"].status == "ok"


@pytest.mark.parametrize(("state", "status"), [("UPDATING", "ok"), ("DELETING", "problem")])
async def test_the_state_of_the_stream_is_told(stream: Stream, state: str, status: str) -> None:
    stream.server._stream("orders").status = state
    assert (await examine(stream))["stream"].status == status


async def test_a_key_of_ones_own_is_tried_by_a_subscription(stream: Stream) -> None:
    register(stream)
    encrypt(stream)
    assert (await examine(stream))["encryption"].status == "unknown"
    assert (await examine(stream, subscribe=True))["encryption"].status == "ok"


async def test_open_and_closed_shards_are_counted(stream: Stream) -> None:
    stream.server.split_shard("orders", FIRST)
    found = await examine(stream)
    assert found["shards"].detail == "2 open, 1 closed; 50,000 are read at most"
    assert "on 2 open shards" in found["price"].detail


async def test_too_many_open_shards_for_this_process_are_a_problem(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await examine(stream))["open files"].status == "ok"
    monkeypatch.setattr("fanout.kinesis.doctor.diagnose.open_files_limit", lambda: 8)
    assert (await examine(stream))["open files"].status == "problem"


async def test_too_little_memory_is_a_problem(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await examine(stream))["memory"].status == "ok"
    monkeypatch.setattr("fanout.kinesis.doctor.diagnose.available_memory", lambda: 1 << 20)
    assert (await examine(stream))["memory"].status == "problem"


# The checkpoint


def identity(stream: Stream) -> str:
    """The name under which the library stores the positions of the stream."""
    created = stream.server._stream("orders").creation_datetime.replace(tzinfo=UTC)
    return f"kinesis:{stream.arn} of {created.isoformat(timespec='milliseconds')}"


def stored(
    stream: Stream, position: Position, *, newest: int | None = None, shard: str = FIRST
) -> Checkpoint:
    state = SplitPosition(Split(shard), position, newest=newest)
    return Checkpoint(identity(stream), {shard: state})


def put_ago(stream: Stream, hours: float, count: int = 1) -> None:
    """Put records that arrived so long ago."""
    with pytest.MonkeyPatch.context() as clock:
        arrival = now() - round(hours * HOUR)
        clock.setattr("fanout.testing.kinesis.moto_stream.now_in_millis", lambda: arrival)
        stream.put(count)


def now() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


async def backlog(stream: Stream, checkpoint: Checkpoint) -> Finding:
    return (await examine(stream, checkpoint=checkpoint))["backlog"]


def after_first(stream: Stream, *, unread: int = 1, hours: float = 0) -> Cursor:
    """Put a record that was read, and others after it; all of them are as old."""
    put_ago(stream, hours, 1 + unread)
    return Cursor(int(stream.log[FIRST][0]))


async def test_a_checkpoint_of_a_stream_that_is_read_has_all_of_the_retention(
    stream: Stream,
) -> None:
    stream.put(2)
    async with stream.open() as opened:
        await opened.acknowledge(await opened.drain(max_records=2, first_wait=math.inf))
        saved = opened.positions
    found = await examine(stream, checkpoint=Checkpoint.from_json(saved))
    assert found["checkpoint"].detail.startswith("1 shards known, 0 of them read to the end")
    assert found["backlog"].status == "ok"
    detail = "unread records are kept for 24.0 h or more (shards: 1)"
    assert found["backlog"].detail == detail


async def test_a_checkpoint_of_another_stream_is_a_problem(stream: Stream) -> None:
    checkpoint = Checkpoint(f"kinesis:{stream.arn}-too", {})
    found = await examine(stream, checkpoint=checkpoint)
    assert found["checkpoint"].status == "problem"
    assert f"belongs to kinesis:{stream.arn}-too" in found["checkpoint"].detail
    assert "backlog" not in found


async def test_a_shard_that_is_no_longer_listed_was_lost_unless_it_was_read_to_its_end(
    stream: Stream,
) -> None:
    gone, ended = "shardId-000000000098", "shardId-000000000099"
    checkpoint = Checkpoint(
        identity(stream),
        {
            gone: SplitPosition(Split(gone), Cursor(1)),
            ended: SplitPosition(Split(ended), Cursor(1), ended=True),
        },
    )
    found = await examine(stream, checkpoint=checkpoint)
    assert found["expired shards"].status == "problem"
    assert found["expired shards"].detail.startswith(f"{gone}: not read to the end")
    assert ended not in repr(found)


async def test_shards_that_a_checkpoint_does_not_know_are_counted(stream: Stream) -> None:
    stream.server.split_shard("orders", FIRST)
    found = await examine(stream, checkpoint=stored(stream, Horizon()))
    assert "2 listed ones are new to it" in found["checkpoint"].detail
    assert found["backlog"].detail == "to be read from the oldest record on (shards: 1)"


@pytest.mark.fault("The retention is shortened")
@pytest.mark.parametrize(
    ("hours", "status"), [(17.9, "ok"), (18.1, "warning"), (23.9, "warning"), (24.1, "problem")]
)
async def test_unread_records_with_less_than_a_quarter_of_their_time_are_a_warning(
    stream: Stream, hours: float, status: str
) -> None:
    found = await backlog(stream, stored(stream, after_first(stream, hours=hours)))
    assert found.status == status
    if status == "warning":
        assert found.detail == f"unread records of {FIRST} expire in {24 - hours:.1f} of 24 h"


async def test_a_longer_retention_leaves_more_time(stream: Stream) -> None:
    with client(stream) as opened:
        opened.increase_stream_retention_period(StreamName="orders", RetentionPeriodHours=168)
    found = await backlog(stream, stored(stream, after_first(stream, hours=25)))
    assert found.status == "ok"
    assert "kept for 143.0 h or more" in found.detail


async def test_a_position_before_the_oldest_record_is_a_problem(stream: Stream) -> None:
    position = after_first(stream)
    stream.server.expire("orders")
    found = await backlog(stream, stored(stream, position))
    assert found.status == "problem"
    assert f"the records that follow in {FIRST} have expired" in found.detail
    assert "on_data_loss='earliest'" in found.advice


async def test_a_shard_without_unread_records_loses_nothing(stream: Stream) -> None:
    position = after_first(stream, unread=0, hours=23)
    found = await backlog(stream, stored(stream, position, newest=now() - 23 * HOUR))
    assert found.status == "ok"


async def test_the_rest_of_an_aggregated_record_is_unread(stream: Stream) -> None:
    position = after_first(stream, unread=0, hours=23)
    inside = Cursor(position.sequence, 0)
    assert (await backlog(stream, stored(stream, inside))).status == "warning"


@pytest.mark.parametrize(("hours", "status"), [(1, "ok"), (20, "warning"), (30, "problem")])
async def test_a_time_is_a_position_as_well(stream: Stream, hours: int, status: str) -> None:
    put_ago(stream, min(hours, 23))
    position = Timestamp(now() - hours * HOUR - 60_000)
    assert (await backlog(stream, stored(stream, position))).status == status


async def test_a_position_that_says_that_it_is_young_needs_no_permission(stream: Stream) -> None:
    stream.inject(RefuseCall(action="GetShardIterator", times=9))
    checkpoint = stored(stream, after_first(stream), newest=now() - 2 * HOUR)
    found = await backlog(stream, checkpoint)
    assert found.status == "ok"
    assert "kept for 22.0 h or more" in found.detail
    assert (await backlog(stream, stored(stream, Timestamp(now() - HOUR)))).status == "ok"


@pytest.mark.parametrize("action", ["GetShardIterator", "GetRecords"])
async def test_without_permission_to_poll_the_age_is_unknown(stream: Stream, action: str) -> None:
    checkpoint = stored(stream, after_first(stream, hours=20))
    stream.inject(RefuseCall(action=action, times=9))
    found = await backlog(stream, checkpoint)
    assert found.status == "unknown"
    assert "kinesis:GetShardIterator and kinesis:GetRecords are not granted" in found.detail
    assert "fanout iam-policy" in found.advice


async def test_one_record_is_asked_for(stream: Stream) -> None:
    asked = []
    session = aioboto3.Session(
        region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing"
    )
    session.events.register(
        "before-parameter-build.kinesis.GetRecords", lambda params, **_: asked.append(params)
    )
    await examine(stream, session=session, checkpoint=stored(stream, after_first(stream)))
    assert [params["Limit"] for params in asked] == [1]


async def test_a_shard_that_was_read_to_its_end_has_no_backlog(stream: Stream) -> None:
    position = after_first(stream, hours=20)
    ended = SplitPosition(Split(FIRST), position, ended=True)
    found = await backlog(stream, Checkpoint(identity(stream), {FIRST: ended}))
    assert found.status == "ok"
    assert found.detail.endswith("those that it knows were read to their end")


async def test_a_throttled_shard_is_unknown(stream: Stream) -> None:
    checkpoint = stored(stream, after_first(stream))
    stream.inject(RefuseCall(action="GetRecords", code="ProvisionedThroughputExceededException"))
    found = await backlog(stream, checkpoint)
    assert found.status == "unknown"
    assert "ProvisionedThroughputExceededException" in found.detail
    assert "grant" not in found.advice


@pytest.mark.parametrize("shards", [8])
async def test_many_shards_are_one_finding_that_names_a_few(stream: Stream) -> None:
    put_ago(stream, 20, 64)
    splits = {
        shard: SplitPosition(Split(shard), Cursor(int(numbers[0])))
        for shard, numbers in stream.log.items()
    }
    found = await diagnose(stream.source(), checkpoint=Checkpoint(identity(stream), splits))
    (backlog,) = [each for each in found if each.check == "backlog"]
    assert f"{FIRST}, {SECOND}, " in backlog.detail
    assert " and 3 more expire in 4.0 of 24 h" in backlog.detail


async def test_what_cannot_be_compared_is_unknown(stream: Stream) -> None:
    stream.inject(RefuseCall(action="ListShards", times=9))
    found = await examine(stream, checkpoint=stored(stream, Horizon()))
    assert found["checkpoint"].status == "unknown"


async def test_the_lag_is_the_age_of_the_oldest_unread_record(stream: Stream) -> None:
    checkpoint = stored(stream, after_first(stream, hours=2))
    found = (await examine(stream, checkpoint=checkpoint))["lag"]
    assert found.status == "ok"
    match = re.fullmatch(r"the oldest unread record is ([0-9,.]+) s old, in (.*)", found.detail)
    assert match is not None, found.detail
    assert float(match[1].replace(",", "")) == pytest.approx(7200, abs=60)
    assert match[2] == FIRST


async def test_a_reader_at_the_end_has_no_lag(stream: Stream) -> None:
    position = after_first(stream, unread=0, hours=2)
    found = (await examine(stream, checkpoint=stored(stream, position)))["lag"]
    assert (found.status, found.detail) == ("ok", "nothing is unread")


async def test_without_permission_to_poll_the_lag_is_unknown(stream: Stream) -> None:
    stream.inject(RefuseCall(action="GetRecords", times=9))
    checkpoint = stored(stream, after_first(stream), newest=now())
    found = (await examine(stream, checkpoint=checkpoint))["lag"]
    assert found.status == "unknown"
    assert found.detail == "kinesis:GetShardIterator and kinesis:GetRecords are not granted"


# Secrets and cancellation


async def test_no_secret_is_in_a_finding(stream: Stream) -> None:
    session = aioboto3.Session(
        region_name=REGION,
        aws_access_key_id="AKIDCANARY",
        aws_secret_access_key=CANARY,
        aws_session_token=CANARY,
    )
    stream.put(2)
    register(stream)
    checkpoint = stored(stream, Cursor(int(stream.log[FIRST][0])))
    for fault in (None, RefuseCall(action="ListShards", times=9)):
        if fault is not None:
            stream.inject(fault)
        found = await diagnose(
            stream.source(session=session), checkpoint=checkpoint, subscribe=True
        )
        assert [each for each in found if CANARY in repr(each) or "AKIDCANARY" in repr(each)] == []


async def test_a_cancelled_examination_leaves_nothing_open(stream: Stream) -> None:
    register(stream)
    stream.inject(Stall())
    task = asyncio.create_task(diagnose(stream.source(), subscribe=True))
    await eventually(lambda: stream.server.statistics().open_subscriptions)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: stream.server.statistics().open_subscriptions == 0)
