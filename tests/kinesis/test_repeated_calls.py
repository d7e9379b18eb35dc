"""Calls of a queue that botocore prepares once: what is sent again, and what an error says."""

from __future__ import annotations

import hmac
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest
from aiobotocore.credentials import AioCredentials as Credentials
from botocore.exceptions import ClientError, ProxyConnectionError

from fanout.kinesis.queue.client import open_queue_client
from fanout.kinesis.queue.options import QueueOptions
from fanout.testing.http_server import HttpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from fanout.kinesis.queue.client import QueueClient

ARN = "arn:aws:kinesis:us-east-1:123456789012:queue/0123"
SECRET = "the-session-token"
OF_ONE_CALL = {
    "HTTP_AMZ_SDK_INVOCATION_ID",
    "HTTP_AMZ_SDK_REQUEST",
    "HTTP_AUTHORIZATION",
    "HTTP_X_AMZ_DATE",
    "CONTENT_LENGTH",
}


class Service:
    """Record what is asked, and answer what a test has set."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status, self.answer = "200 OK", b'{"QueueRecords": []}'
        self.http = HttpServer(0, self._application, name="test")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    def _application(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        headers = {
            name: value for name, value in environ.items() if name.startswith(("HTTP_", "CONTENT_"))
        }
        body = environ["wsgi.input"].read()
        self.asked.append({"headers": headers, "body": body, "port": environ["REMOTE_PORT"]})
        start(self.status, [("Content-Length", str(len(self.answer)))])
        return [self.answer]


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    try:
        yield service
    finally:
        service.http.close()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[QueueClient]:
    session = aioboto3.Session(
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        aws_session_token=SECRET,
    )
    options = QueueOptions(stream="events", queue=ARN, endpoint_url=service.url, session=session)
    async with open_queue_client(options, 1) as client:
        yield client


async def receive(client: QueueClient) -> Any:
    return await client.receive(ARN, wait=1, visible_after=30)


def expected_signature(call: Mapping[str, Any]) -> str:
    """Sign a request that arrived, by the documentation of Signature Version 4."""
    headers: dict[str, str] = call["headers"]
    scope = headers["HTTP_AUTHORIZATION"].partition("Credential=")[2].partition(",")[0]
    names = headers["HTTP_AUTHORIZATION"].partition("SignedHeaders=")[2].partition(",")[0]
    fields = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): v for name, v in headers.items()
    }
    lines = [f"{name}:{fields[name]}" for name in names.split(";")]
    canonical = ["POST", "/", "", *lines, "", names, sha256(call["body"]).hexdigest()]
    _, *parts = scope.split("/")
    told = ["AWS4-HMAC-SHA256", headers["HTTP_X_AMZ_DATE"], "/".join(parts)]
    key = b"AWS4secret"
    for part in parts:
        key = hmac.digest(key, part.encode(), "sha256")
    hashed = sha256("\n".join(canonical).encode()).hexdigest()
    return hmac.digest(key, "\n".join([*told, hashed]).encode(), "sha256").hex()


async def test_a_later_call_is_the_first_one_with_a_signature_of_its_own(
    client: QueueClient, service: Service
) -> None:
    for wait in (1, 1, 2):
        await client.receive(ARN, wait=wait, visible_after=30)
    for call in service.asked:
        headers = call["headers"]
        assert headers["HTTP_AUTHORIZATION"].endswith(f"Signature={expected_signature(call)}")
        assert headers["HTTP_X_AMZ_SECURITY_TOKEN"] == SECRET
        first = service.asked[0]["headers"]
        assert first.keys() - headers.keys() <= OF_ONE_CALL
        for name in headers.keys() - OF_ONE_CALL:
            assert headers[name] == first[name]
    assert [json.loads(call["body"])["WaitTimeSeconds"] for call in service.asked] == [1, 1, 2]


async def test_a_connection_is_used_again(client: QueueClient, service: Service) -> None:
    for _ in range(3):
        await receive(client)
    assert len({call["port"] for call in service.asked}) == 1


async def test_an_error_is_that_of_botocore_and_holds_no_secret(
    client: QueueClient, service: Service
) -> None:
    code = "InvalidSignatureException"
    told = (
        "The request signature we calculated does not match. The Canonical String for this request "
        f"should have been x-amz-security-token:{SECRET}"
    )
    service.status = "400 Bad Request"
    service.answer = json.dumps({"__type": f"com.amazon#{code}", "message": told}).encode()
    raised = []
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            await receive(client)
        raised.append(caught.value)
    first, second = raised
    assert first.response["Error"] == second.response["Error"]
    assert SECRET not in str(second)
    assert second.response["Error"]["Code"] == code
    assert second.response["ResponseMetadata"]["HTTPStatusCode"] == 400


async def test_an_error_without_a_document_is_one_of_the_service(
    client: QueueClient, service: Service
) -> None:
    await receive(client)
    service.status, service.answer = "503 Service Unavailable", b"<html>busy</html>"
    with pytest.raises(ClientError) as caught:
        await receive(client)
    assert caught.value.response["Error"]["Code"] == "503"


async def test_renewed_credentials_sign_the_next_call(
    client: QueueClient, service: Service
) -> None:
    await receive(client)
    client._credentials._current = Credentials("another-key", "secret")
    await receive(client)
    headers = service.asked[-1]["headers"]
    assert "Credential=another-key/" in headers["HTTP_AUTHORIZATION"]
    assert "HTTP_X_AMZ_SECURITY_TOKEN" not in headers
    assert headers["HTTP_AUTHORIZATION"].endswith(expected_signature(service.asked[-1]))


async def test_an_error_of_a_proxy_does_not_show_its_password(
    client: QueueClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await receive(client)

    async def send(_: Any) -> None:
        cause = OSError("http://user:password@proxy")
        raise ProxyConnectionError(proxy_url="http://proxy", error=cause) from cause

    monkeypatch.setattr(client._client._endpoint.http_session, "send", send)
    with pytest.raises(ProxyConnectionError) as caught:
        await receive(client)
    assert caught.value.__suppress_context__
    assert len(service.asked) == 1
