"""Make small calls again and again without botocore's preparation, which is most of their cost.

botocore prepares the first call of an operation: its endpoint and its headers. Later ones have the
same, another body and a signature of their own, and go through the same HTTP client. A handler that
a user has registered with the session sees the first call only.

The module uses private names of one client: `_endpoint.http_session` and `_request_signer`; see
`aws.raw_bodies` for the supported versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, ProxyConnectionError
from botocore.parsers import JSONParser

from fanout.kinesis.aws.credentials import hide_proxy, hide_signed_headers
from fanout.kinesis.aws.raw_bodies import deliver_raw_bodies, take_raw_body

if TYPE_CHECKING:
    from collections.abc import Mapping

# Headers that another call does not have, or has with another value; in small letters.
_OF_ONE_CALL: Final = {
    *("amz-sdk-invocation-id", "amz-sdk-request", "authorization", "content-length"),
    *("x-amz-date", "x-amz-security-token"),
}
_FIRST_ERROR: Final = 300


@final
class RepeatedCalls:
    """Make calls of a client, again and again, and return undecoded answers."""

    def __init__(self, client: Any, credentials: Any) -> None:
        self._client = client
        self._credentials = credentials
        self._http = client._endpoint.http_session  # noqa: SLF001 - no public name exists
        self._signer = client._request_signer  # noqa: SLF001 - no public name exists
        self._prepared: dict[str, tuple[str, dict[str, str]]] = {}
        deliver_raw_bodies(client)
        client.meta.events.register("before-send", self._note)

    async def call(self, operation: str, arguments: Mapping[str, Any]) -> bytes:
        """Make one call, once; errors are those that the client itself raises."""
        if operation not in self._prepared:
            return await self._first(operation, arguments)
        url, headers = self._prepared[operation]
        request = AWSRequest("POST", url, headers=headers, data=msgspec.json.encode(arguments))
        keys = await self._credentials.get_frozen_credentials()
        SigV4Auth(keys, self._signer.signing_name, self._signer.region_name).add_auth(request)
        try:
            answer = await self._http.send(request.prepare())
        except ProxyConnectionError as error:
            hide_proxy(error)
            raise
        body: bytes = await answer.content
        if answer.status_code >= _FIRST_ERROR:
            told = {"status_code": answer.status_code, "headers": answer.headers, "body": body}
            parsed = JSONParser().parse(told, None)
            hide_signed_headers(parsed)
            raise ClientError(parsed, operation)
        return body

    async def _first(self, operation: str, arguments: Mapping[str, Any]) -> bytes:
        model = self._client.meta.service_model.operation_model(operation)
        model.has_streaming_output = True
        # The client has no method for an operation that its botocore does not know.
        answer = await self._client._make_api_call(operation, arguments)  # noqa: SLF001
        body = take_raw_body(answer)
        try:
            return b"".join([chunk async for chunk in body.chunks()])
        finally:
            body.close()

    def _note(self, request: Any, event_name: str, **_: object) -> None:
        headers = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()
            if name.lower() not in _OF_ONE_CALL
        }
        self._prepared[event_name.rpartition(".")[2]] = request.url, headers
