"""What errors of Kinesis advise: by the call and the code, and nothing where nothing is known."""

from __future__ import annotations

import asyncio
import errno
import re
import traceback
from contextlib import asynccontextmanager, closing
from types import MappingProxyType
from typing import TYPE_CHECKING

import aiohttp
import botocore.session
import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    ParamValidationError,
    ProxyConnectionError,
    SSLError,
)

from fanout.errors import FanOutError, RemoteError, ServiceError, SetupError
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, explain, hint_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.support.kinesis.reading import Stream

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
KEYS = MappingProxyType(
    {
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
)
URL = "https://kinesis.eu-west-1.amazonaws.com"

STREAM_CALLS = (
    "DescribeStreamSummary",
    "ListShards",
    "ListStreamConsumers",
    "RegisterStreamConsumer",
    "PutRecords",
)
CONSUMER_CALLS = ("DescribeStreamConsumer", "DeregisterStreamConsumer")
SHARD_CALLS = ("GetShardIterator", "GetRecords")
SUBSCRIBE = "SubscribeToShard"
CALLS = (*STREAM_CALLS, *CONSUMER_CALLS, *SHARD_CALLS, SUBSCRIBE)

# What each code advises, by call; `*` stands for the calls that are not named. None is advice
# nowhere: the service's own sentence says what it refuses, or the error passes by itself.
ADVICE: Mapping[str, Mapping[str, str | None]] = MappingProxyType(
    {
        "InvalidArgumentException": {"*": None},
        "LimitExceededException": {"*": None},
        "ProvisionedThroughputExceededException": {"*": None},
        "InternalFailureException": {"*": None},
        "ExpiredIteratorException": {"*": None},
        "KMSThrottlingException": {"*": None},
        "ExpiredNextTokenException": {"*": "the listing took longer"},
        "ResourceInUseException": {SUBSCRIBE: None, "*": "the stream must be ACTIVE"},
        "ResourceNotFoundException": {
            **dict.fromkeys(STREAM_CALLS, "check the stream's name, its region and its account"),
            **dict.fromkeys(CONSUMER_CALLS, "no consumer of the stream has that name or ARN"),
            **dict.fromkeys(SHARD_CALLS, "the stream or the shard is gone"),
            SUBSCRIBE: "the stream, its consumer or the shard is gone",
        },
        "AccessDeniedException": {
            **{call: rf"grant kinesis:{call} on the stream" for call in CALLS},
            **{
                call: rf"grant kinesis:{call} on the consumer"
                for call in (*CONSUMER_CALLS, SUBSCRIBE)
            },
            "PutRecords": r"grant kinesis:PutRecords and kinesis:ListShards on the stream$",
        },
        "KMSAccessDeniedException": {
            "PutRecords": "grant kms:GenerateDataKey",
            "*": "grant kms:Decrypt",
        },
        "KMSDisabledException": {"*": ".* is disabled; enable it"},
        "KMSInvalidStateException": {"*": ".* cannot be used in its state"},
        "KMSNotFoundException": {"*": ".* does not exist"},
        "KMSOptInRequired": {"*": ".* has no subscription to KMS"},
    }
)


def documented() -> list[tuple[str, str]]:
    """Return each call of a reader or writer with each code that the service documents for it."""
    model = botocore.session.get_session().get_service_model("kinesis")
    pairs = {
        (call, shape.name) for call in CALLS for shape in model.operation_model(call).error_shapes
    }
    members = model.operation_model(SUBSCRIBE).output_shape.members["EventStream"].members
    pairs |= {
        (SUBSCRIBE, name) for name, shape in members.items() if shape.metadata.get("exception")
    }
    return sorted(pairs)


def refused(call: str, code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, call)


@pytest.mark.long
@pytest.mark.parametrize(("call", "code"), documented())
def test_each_documented_error_of_each_call_has_its_own_advice(call: str, code: str) -> None:
    by_call = ADVICE[code]
    advice = by_call[call] if call in by_call else by_call["*"]
    errors = [refused(call, code)] + ([RemoteError(code, "no")] if call == SUBSCRIBE else [])
    for error in errors:
        hint = hint_of(error)
        assert re.match(advice, hint) if advice is not None else hint == ""


@pytest.mark.long
@pytest.mark.parametrize(("call", "code"), documented())
def test_advice_is_about_what_the_call_has_named(call: str, code: str) -> None:
    hint = hint_of(refused(call, code))
    assert "TRIM_HORIZON" not in hint
    assert "position" not in hint
    if call in SHARD_CALLS or call in {"DescribeStreamSummary", "ListShards", "PutRecords"}:
        assert "consumer" not in hint
    if call == "PutRecords":
        assert "Decrypt" not in hint
        assert "reader" not in hint


@pytest.mark.parametrize("call", [*CALLS, "AssumeRole", "AssumeRoleWithWebIdentity"])
@pytest.mark.parametrize("code", ["Surprise", "ValidationException", "403", ""])
def test_a_code_that_nobody_knows_gets_its_own_text_and_no_guess(call: str, code: str) -> None:
    error = refused(call, code, "the service's own sentence")
    assert hint_of(error) == ""
    assert str(explain(error, "it failed")) == f"it failed: {error}"


@pytest.mark.parametrize("code", sorted(ACCESS_DENIED))
@pytest.mark.parametrize("call", CALLS)
def test_a_resource_of_another_account_needs_its_owners_policy(call: str, code: str) -> None:
    message = (
        f"User: x is not authorized to perform: kinesis:{call} on resource: {STREAM_ARN} because "
        f"no resource-based policy allows the kinesis:{call} action"
    )
    hint = hint_of(refused(call, code, message))
    assert hint.startswith("the stream belongs to another account: ")
    assert f"must allow kinesis:{call}" in hint
    by_name = call in {"DescribeStreamConsumer", "RegisterStreamConsumer"}
    assert ("give the consumer's ARN" in hint) is by_name


def test_a_role_is_blamed_only_where_it_was_denied() -> None:
    assert hint_of(refused("AssumeRole", "AccessDenied")).startswith("check role_arn")
    assert "token" in hint_of(refused("AssumeRoleWithWebIdentity", "AccessDenied"))
    assert "role_arn" not in hint_of(refused("AssumeRole", "ExpiredTokenException"))


def too_many_files() -> Exception:
    error: Exception = EndpointConnectionError(endpoint_url=URL, error="Too many open files")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    return error


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), too_many_files()], ids=repr
)
def test_a_limit_of_this_machine_is_not_told_as_a_fault_of_the_service(error: Exception) -> None:
    told = explain(error, "it failed")
    assert isinstance(told, SetupError)
    assert "a limit of this machine or container, not a fault of the service" in str(told)
    assert "endpoint_url" not in str(told)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "no"), IsADirectoryError(21, "no")])
def test_a_file_that_the_configuration_names_is_told_as_such(error: OSError) -> None:
    for raised in (error, HTTPClientError(error=error)):
        told = explain(raised, "it failed")
        assert isinstance(told, SetupError)
        assert "AWS_CA_BUNDLE" in str(told)
        assert "the region" not in str(told)


@pytest.mark.parametrize("error", [KeyError("x"), ParamValidationError(report="no")], ids=repr)
def test_an_error_that_nobody_expects_is_no_answer_of_the_service(error: Exception) -> None:
    told = explain(error, "it failed")
    assert not isinstance(told, ServiceError | SetupError)
    assert str(told).startswith(f"it failed: {type(error).__name__}: ")
    assert "please report it" in str(told)


def test_a_certificate_that_is_not_trusted_is_told_as_such() -> None:
    told = explain(SSLError(endpoint_url=URL, error="certificate verify failed"), "it failed")
    assert isinstance(told, ServiceError)
    assert "AWS_CA_BUNDLE" in str(told)
    assert "the region" not in str(told)


def test_credentials_that_cannot_be_fetched_are_told_once() -> None:
    told = explain(CredentialRetrievalError(provider="sso", error_msg="no"), "it failed")
    assert str(told).endswith("(check the source of the credentials that it names)")


# Proxies


@pytest.fixture(autouse=True)
def _keys(
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def refusing_proxy() -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with closing(writer):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://user:canary@127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.usefixtures("usual_hosts")
@pytest.mark.parametrize("http_version", [1.1, 2])
async def test_a_proxy_that_refuses_a_host_is_told_with_the_host(
    http_version: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with refusing_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        opening = open_kinesis_client(stream=STREAM_ARN, http_version=http_version)
        async with opening as client:
            with pytest.raises(ProxyConnectionError) as raised:
                async with client.subscribe(
                    f"{STREAM_ARN}/consumer/etl:1", "shardId-000000000000", {"Type": "LATEST"}
                ):
                    pass
    told = str(explain(raised.value, "it failed"))
    assert "111122223333.data-kinesis.us-east-1.amazonaws.com" in told
    assert "403" in told
    assert "NO_PROXY" in told
    assert "canary" not in "".join(traceback.format_exception(raised.value))


def test_a_proxy_that_does_not_answer_is_told_as_such() -> None:
    error = ProxyConnectionError(
        proxy_url="http://127.0.0.1:1", error=ConnectionRefusedError(111, "no")
    )
    told = str(explain(error, "it failed"))
    assert "http://127.0.0.1:1" in told
    assert "check HTTPS_PROXY and HTTP_PROXY" in told


@pytest.mark.parametrize("by_environment", [True, False])
async def test_a_server_on_this_machine_is_reached_without_a_proxy(
    by_environment: bool,  # noqa: FBT001 - a parameter of the test
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = stream.server.endpoint_url
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    if by_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", url)
    given = None if by_environment else url
    async with open_kinesis_client(stream="orders", endpoint_url=given) as client:
        arn = (await client.describe_stream()).arn
        (shard,) = await client.list_shards()
        assert await client.get_shard_iterator(arn, shard.shard_id, {"Type": "TRIM_HORIZON"})


def test_errors_below_botocore_are_those_of_an_endpoint() -> None:
    told = explain(aiohttp.ServerDisconnectedError(), "it failed")
    assert isinstance(told, FanOutError)
    assert "the endpoint does not answer" in str(told)
