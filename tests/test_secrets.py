"""Secrets and records appear in no log, error or text that did not request them.

The secrets are those of the user's credentials; records are their data, partition keys and explicit
hash keys. Here they go through everything that quotes things: options, errors with their causes,
logs at DEBUG, checkpoints, statistics and segments. What Spark adds, its plans and the files of a
checkpoint, is in `tests/spark/test_query_kinesis.py::test_a_secret_is_nowhere`.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import math
import pickle  # noqa: TID251 - nothing is unpickled here
import traceback
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import aioboto3
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import fanout
from fanout.errors import FanOutError, MalformedEventError, OptionError
from fanout.kinesis.reading.decode import decode_event, decode_records
from fanout.kinesis.reading.event_stream import FrameDecoder
from fanout.kinesis.writing.kpl_format import encode_aggregate, seal_aggregate
from fanout.landing.segments.segments import SegmentLog
from fanout.testing.fast_mode import fast
from fanout.testing.faults import (
    CorruptFrame,
    CutConnection,
    CutPoll,
    RaiseInStream,
    RefuseCall,
    RefuseSubscribe,
)
from fanout.testing.kinesis.frames import encode_event
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.kinesis.reading import FIRST, Stream, seeded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from fanout.core.drain import Drained
    from fanout.core.source import Source

ACCESS_KEY, SECRET_KEY, TOKEN = "AKIACANARYACCESS", "canary-secret-key", "canary-session-token"
ROLE = "arn:aws:iam::111122223333:role/reader"
ROLE_KEYS = ("ASIACANARYROLE", "canary-role-secret", "canary-role-token")
EXTERNAL_ID = "canary-external-id"
CREDENTIALS = (ACCESS_KEY, SECRET_KEY, TOKEN, EXTERNAL_ID, *ROLE_KEYS)

DATA, KEY, HASH_KEY = b"canary-data", "canary-key", 271828182845904523536028747135266249
RECORDS = (DATA.decode(), KEY, str(HASH_KEY))
PAIRS = [(KEY, DATA)] * 3

AGGREGATE = encode_aggregate(PAIRS, [HASH_KEY] * 3)
DAMAGED = AGGREGATE[:-1] + bytes([AGGREGATE[-1] ^ 1])
# The message of an aggregate has neither its magic nor its MD5.
MESSAGE = AGGREGATE[4:-16]
BROKEN = seal_aggregate(MESSAGE + b"\x0a\x7f" + DATA)
NOT_UTF8 = seal_aggregate(b"\x0a\x0c\xff" + KEY.encode() + b"!" + MESSAGE)
BAD_HASH_KEY = encode_aggregate(PAIRS, [HASH_KEY * 10**9] * 3)

# What AWS answers to a wrong signature: everything that was signed.
WRONG_SIGNATURE = f"""The request signature we calculated does not match the signature you provided.

The Canonical String for this request should have been
'POST
/

host:kinesis.us-east-1.amazonaws.com
x-amz-date:20261121T120000Z
x-amz-security-token:{TOKEN}
'"""


def forms(secret: str) -> Iterator[str]:
    """Yield how a secret might be written."""
    raw = secret.encode()
    yield secret
    yield raw.hex()
    yield base64.b64encode(raw[: len(raw) // 3 * 3]).decode()


def leaked(text: str, secrets: tuple[str, ...] = CREDENTIALS + RECORDS) -> list[str]:
    return [form for secret in secrets for form in forms(secret) if form in text]


class Output:
    """All texts that a user or a log may see, apart from the requested records."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.texts: list[str] = []
        self.errors: list[BaseException] = []
        self._caplog = caplog

    def add(self, *things: object) -> None:
        for thing in things:
            self.texts += (repr(thing), str(thing))

    def add_error(self, error: BaseException) -> None:
        """Add an error as a traceback prints it, with causes, notes, and all attributes."""
        self.errors.append(error)
        self.texts += traceback.format_exception(error)
        cause: BaseException | None = error
        while cause is not None:
            self.add(cause, cause.args, vars(cause))
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)

    def check(self) -> None:
        records = [each for each in self._caplog.records if each.name.startswith("fanout")]
        form = logging.Formatter("%(name)s %(message)s %(args)s")
        # What `extra=` has added is an attribute of the record, and goes to logs as JSON.
        fields = [repr(vars(each)) for each in records]
        assert leaked("\n".join([*self.texts, *map(form.format, records), *fields])) == []


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture) -> Output:
    caplog.set_level(logging.DEBUG, "fanout")
    return Output(caplog)


@pytest.fixture
def stream(
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Stream]:
    # One record an event, so that everything which is done to an event is done to an earlier one.
    rules = replace(KinesisRules.fast(), max_event_records=1, max_poll_records=1)
    with fast(rules), KinesisServer(rules) as server:
        yield Stream(server)


@functools.cache
def secret_session() -> aioboto3.Session:
    return aioboto3.Session(
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        aws_session_token=TOKEN,
    )


async def drive(source: Source, output: Output, *, records: int) -> None:
    """Read until so many records have come or the stream fails; note all that it says."""
    output.add(source)
    try:
        async with (
            fanout.open(
                source, on_resubscribe=lambda _, cause, __: output.add_error(cause), random=seeded()
            ) as opened,
            asyncio.timeout(20),
        ):
            while records > 0:
                output.add(opened, opened.statistics())
                batch = await anext(opened)
                records -= batch.num_records
                await opened.acknowledge(batch)
                output.add(batch, batch.gaps, batch.range, opened.positions)
                output.add(opened.statistics(), opened.delivered)
    except FanOutError as error:
        output.add_error(error)


def put(stream: Stream, *data: bytes) -> None:
    stream.server.put_records("orders", [(KEY, each) for each in data])


def put_into_child(stream: Stream, data: bytes) -> None:
    left, _ = stream.server.split_shard("orders", FIRST)
    stream.server.put_records("orders", [("a", data)], shard=left)


ENDS: dict[str, tuple[Any, ...]] = {
    "cut": (CutConnection(event=1),),
    "corrupt": (CorruptFrame(event=1, checksum="message"), CorruptFrame(event=1)),
    "raise": (RaiseInStream(event=1),),
    "key": (RaiseInStream(event=1, code="KMSDisabledException"),),
    "refuse": (RefuseSubscribe(times=2),),
    "html": (RefuseSubscribe(times=2, html=True),),
    "denied": (RefuseSubscribe(status=400, code="AccessDeniedException", times=99),),
    "signature": (
        RefuseSubscribe(
            status=400, code="InvalidSignatureException", message=WRONG_SIGNATURE, times=99
        ),
    ),
}
CALLS = ("DescribeStreamSummary", "ListShards", "DescribeStreamConsumer", "RegisterStreamConsumer")


@pytest.mark.parametrize("faults", ENDS.values(), ids=ENDS)
async def test_the_end_of_a_subscription_tells_no_secret(
    stream: Stream, output: Output, faults: tuple[Any, ...]
) -> None:
    put(stream, DATA, AGGREGATE)
    stream.inject(*faults)
    await drive(stream.source(session=secret_session()), output, records=4)
    assert output.errors
    output.check()


POLLS: dict[str, tuple[Any, ...]] = {
    "cut": (CutPoll(),),
    "refuse": (RefuseCall(action="GetRecords", status=500, code="InternalFailure"),),
    "iterator": (
        RefuseCall(
            action="GetShardIterator",
            code="InvalidSignatureException",
            message=WRONG_SIGNATURE,
            times=99,
        ),
    ),
    "signature": (
        RefuseCall(
            action="GetRecords", code="InvalidSignatureException", message=WRONG_SIGNATURE, times=99
        ),
    ),
}


@pytest.mark.parametrize("faults", POLLS.values(), ids=POLLS)
async def test_a_poll_that_fails_tells_no_secret(
    stream: Stream, output: Output, faults: tuple[Any, ...]
) -> None:
    put(stream, DATA, AGGREGATE)
    stream.inject(*faults)
    source = stream.source(session=secret_session(), mode="polling", consumer=None)
    await drive(source, output, records=4)
    assert output.errors
    output.check()


@pytest.mark.parametrize("action", CALLS)
@pytest.mark.parametrize(
    ("code", "message"),
    [("AccessDeniedException", "denied"), ("InvalidSignatureException", WRONG_SIGNATURE)],
)
async def test_a_refused_call_tells_no_secret(
    stream: Stream, output: Output, action: str, code: str, message: str
) -> None:
    stream.inject(RefuseCall(action=action, code=code, message=message, times=99))
    await drive(stream.source(session=secret_session()), output, records=1)
    (error,) = output.errors
    assert code in str(error)
    output.check()


BAD_RECORDS: dict[str, tuple[Callable[[Stream], None], dict[str, Any], str]] = {
    "broken": (lambda stream: put(stream, DATA, BROKEN), {}, "longer than what holds it"),
    "key": (lambda stream: put(stream, DATA, NOT_UTF8), {}, "not UTF-8"),
    "hash key": (lambda stream: put_into_child(stream, BAD_HASH_KEY), {}, "explicit hash key"),
    "size": (lambda stream: put(stream, DATA * 500), {"max_event_bytes": 4000}, "than the 4000"),
}


@pytest.mark.parametrize(("prepare", "options", "says"), BAD_RECORDS.values(), ids=BAD_RECORDS)
async def test_a_fatal_record_is_not_quoted(
    stream: Stream, output: Output, prepare: Any, options: dict[str, Any], says: str
) -> None:
    prepare(stream)
    await drive(stream.source(session=secret_session(), **options), output, records=99)
    assert says in str(output.errors[-1])
    output.check()


async def test_records_that_are_left_out_dropped_or_damaged_are_not_quoted(
    stream: Stream, output: Output, caplog: pytest.LogCaptureFixture
) -> None:
    put(stream, DATA, BROKEN, NOT_UTF8, DAMAGED)
    put_into_child(stream, encode_aggregate(PAIRS, [2**127 + HASH_KEY, 0, 0]))
    source = stream.source(session=secret_session(), on_bad_aggregate="gap")
    await drive(source, output, records=4)
    assert output.errors == []
    assert "are lost" in caplog.text
    assert "has another MD5" in caplog.text
    output.check()


async def test_a_stream_that_is_gone_tells_no_secret(stream: Stream, output: Output) -> None:
    put(stream, DATA)
    source = stream.source(session=secret_session(), stream="missing")
    await drive(source, output, records=1)
    assert "ResourceNotFoundException" in str(output.errors[0])
    output.check()


@asynccontextmanager
async def security_token_service(status: int, body: str) -> AsyncIterator[str]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=body, status=status, content_type="text/xml")

    application = web.Application()
    application.router.add_post("/", answer)
    async with TestServer(application) as server:
        yield str(server.make_url("/"))


def assumed() -> str:
    key, secret, token = ROLE_KEYS
    expiration = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
      <AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>
      <SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>
      <Expiration>{expiration}</Expiration></Credentials></AssumeRoleResult>
    </AssumeRoleResponse>"""


async def test_the_credentials_of_a_role_are_told_to_nobody(
    stream: Stream, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(stream, DATA)
    wrong = WRONG_SIGNATURE.replace(TOKEN, ROLE_KEYS[2])
    refused = RefuseSubscribe(status=400, code="InvalidSignatureException", message=wrong)
    stream.inject(CutConnection(event=1), refused)
    async with security_token_service(200, assumed()) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        source = stream.source(session=secret_session(), role_arn=ROLE, external_id=EXTERNAL_ID)
        await drive(source, output, records=1)
    assert output.errors
    output.check()


async def test_a_refused_role_tells_no_secret(
    stream: Stream, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = f"<Code>SignatureDoesNotMatch</Code><Message>{WRONG_SIGNATURE}</Message>"
    body = f"<ErrorResponse><Error>{error}</Error></ErrorResponse>"
    async with security_token_service(403, body) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        source = stream.source(session=secret_session(), role_arn=ROLE, external_id=EXTERNAL_ID)
        await drive(source, output, records=1)
    assert "SignatureDoesNotMatch" in str(output.errors[0])
    output.check()


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": f"https://{ACCESS_KEY}:{SECRET_KEY}@kinesis.example"},
        {"max_retries": -1},
        {"start": "newest"},
        {"consumer": "a/b"},
    ],
)
def test_a_bad_option_tells_no_secret(
    stream: Stream, output: Output, options: dict[str, Any]
) -> None:
    with pytest.raises(OptionError) as caught:
        stream.source(session=secret_session(), **options)
    output.add_error(caught.value)
    output.check()


class TalkativeSession(aioboto3.Session):  # type: ignore[misc]  # aioboto3 is untyped
    def __repr__(self) -> str:
        return f"<session of {SECRET_KEY}>"


def test_options_show_and_pickle_no_secret(stream: Stream, output: Output) -> None:
    output.add(stream.source(session=TalkativeSession()))
    source = stream.source(session=secret_session())
    output.add(source)
    # A session is no value: a source that holds one is not pickled at all.
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)) as caught:
        pickle.dumps(source)
    output.add_error(caught.value)
    output.check()


def record(**changes: Any) -> dict[str, Any]:
    data = base64.b64encode(DATA).decode()
    return {"Data": data, "PartitionKey": KEY, "SequenceNumber": "1"} | changes


CHILD = {"ShardId": "b", "ParentShards": ["a"], "HashKeyRange": {"StartingHashKey": KEY}}
EVENTS: dict[str, dict[str, Any]] = {
    "data": {"Records": [record(Data=KEY + "!")]},
    "number": {"Records": [record(Data=HASH_KEY)]},
    "key": {"Records": [record(PartitionKey=[KEY])]},
    "time": {"Records": [record(ApproximateArrivalTimestamp=KEY)]},
    "missing": {"Records": [{"Data": record()["Data"], "PartitionKey": KEY}]},
    "records": {"Records": KEY},
    "child": {"Records": [], "ChildShards": [CHILD]},
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize(
    "damage", [(b"", b""), (KEY.encode(), KEY.encode() + b"\xff"), (b"}", b"")]
)
@pytest.mark.parametrize("decode", [decode_event, decode_records])
def test_an_event_that_cannot_be_decoded_is_not_quoted(
    output: Output, event: dict[str, Any], damage: tuple[bytes, bytes], decode: Any
) -> None:
    payload = json.dumps(event | {"MillisBehindLatest": 0}).encode().replace(*damage)
    with pytest.raises(MalformedEventError) as caught:
        decode(payload, stream="orders", shard_id=FIRST)
    output.add_error(caught.value)
    output.check()


def test_a_damaged_frame_is_not_quoted(output: Output) -> None:
    frame = encode_event("SubscribeToShardEvent", json.dumps({"Records": [record()]}).encode())
    for place in range(0, len(frame), 7):
        frames = FrameDecoder()
        frames.feed(frame[:place] + bytes([frame[place] ^ 0x55]) + frame[place + 1 :])
        try:
            frames.next_frame()
            frames.close()
        except MalformedEventError as error:
            output.add_error(error)
    assert len(output.errors) > len(frame) // 10
    output.check()


def test_a_segment_names_its_records_in_its_columns_alone(stream: Stream, tmp_path: Path) -> None:
    put(stream, DATA, AGGREGATE)
    source = stream.source(session=secret_session())

    async def drain() -> Drained:
        async with fanout.open(source, random=seeded()) as opened:
            return await opened.drain(max_records=4, max_wait=10, first_wait=math.inf)

    drained = asyncio.run(drain())
    segments = SegmentLog(tmp_path, 1, source.schema, max_records=100, max_bytes=1 << 20)
    segment = segments.open()
    segment.add(drained)
    path = segment.seal().path
    assert pq.read_table(path)["data"].to_pylist() == [DATA] * 4
    content = path.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") :]
    metadata = pq.ParquetFile(path).metadata
    reported = f"{footer!r} {metadata} {metadata.to_dict()} {metadata.metadata} {path.name}"
    assert leaked(reported + drained.positions.to_json()) == []
    assert leaked(content.decode("latin-1"), CREDENTIALS) == []
