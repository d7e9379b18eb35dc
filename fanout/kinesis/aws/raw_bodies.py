"""Take the undecoded bodies of SubscribeToShard and GetRecords out of botocore's response parser.

botocore parses records one by one into dicts, an order of magnitude slower than fanout.kinesis does
it, reports an error frame that comes first as a parser error, and reads the whole answer to
GetRecords before its size is known. Everything before the body stays botocore's: endpoint rules,
signing, credentials, error responses.

The hook uses private names of one client: `_endpoint._response_parser_factory`,
`has_streaming_output` of the operation, and `_create_event_stream` and `_do_parse` of the parser.
`take_raw_body` raises if one of them changes. The hook also sets how far aiohttp reads ahead,
`_low_water` and `_high_water` of a response's content.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from aiobotocore.parsers import AioJSONParser, AioResponseParserFactory
from aiobotocore.response import StreamingBody

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

SUPPORTED_AIOBOTOCORE: Final = ">=2.25,<3"
"""The versions of aiobotocore whose private names are known; the extra `kinesis` requires them."""

# The key of the body in the parsed response of GetRecords.
_BODY: Final = "Body"

_CHUNK: Final = 64 << 10


class RawBody:
    """Stand in, in botocore's parsed response, for what it would have built from the body."""

    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def size(self) -> int | None:
        """The bytes of the body; None if the service does not send it, as for a subscription."""
        length: int | None = self._response.content_length
        return length

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, in chunks of up to 64 KiB.

        About 256 KiB are read ahead of the caller; the rest waits at the service. A cancellation
        loses no chunk: it is returned or stays in the response.
        """
        content = self._response.content
        # By default aiohttp reads three times as far ahead, which is most of the memory of many
        # shards. It has an option for that, but botocore does not pass it on.
        content._low_water, content._high_water = _CHUNK, 2 * _CHUNK  # noqa: SLF001
        chunks: AsyncIterator[bytes] = content.iter_chunked(_CHUNK)
        return chunks

    def close(self) -> None:
        """Close the connection at once, unless the body was read to its end."""
        self._response.close()

    async def get_initial_response(self) -> Any:
        """Return an empty initial response, which botocore's parser requires before it returns."""
        # The initial-response frame of SubscribeToShard has no content; the frame that the service
        # sends first stays in the body.
        return SimpleNamespace(payload=b"{}")


class _RawParser(AioJSONParser):  # type: ignore[misc]  # botocore is untyped
    def _create_event_stream(self, response: Mapping[str, Any], shape: Any) -> RawBody:  # noqa: ARG002  # the signature is botocore's
        body = response["body"]
        return body if isinstance(body, RawBody) else RawBody(body)

    async def _do_parse(self, response: Mapping[str, Any], shape: Any) -> Any:
        match response["body"]:
            case StreamingBody(__wrapped__=unread):
                return {_BODY: RawBody(unread)}
            case _:
                return await super()._do_parse(response, shape)


class _RawParserFactory(AioResponseParserFactory):  # type: ignore[misc]  # botocore is untyped
    def create_parser(self, protocol_name: str) -> Any:
        if protocol_name == "json":
            return _RawParser(**self._defaults)
        return super().create_parser(protocol_name)


def deliver_raw_bodies(client: Any, *operations: str) -> None:
    """Make a client, and no other of its session, return a RawBody for operations and events."""
    client._endpoint._response_parser_factory = _RawParserFactory()  # noqa: SLF001  # no public hook exists
    for operation in operations:
        client.meta.service_model.operation_model(operation).has_streaming_output = True


def take_raw_body(response: Mapping[str, Any]) -> RawBody:
    """Take the raw body out of the response of a call that delivers one."""
    body = response.get("EventStream") or response.get(_BODY)
    if not isinstance(body, RawBody):
        if body is not None:
            body.close()
        raise SetupError(
            "the installed version of aiobotocore does not give access to the raw body of a "
            "response; fanout supports aiobotocore"
            f"{SUPPORTED_AIOBOTOCORE}: pip install 'aiobotocore{SUPPORTED_AIOBOTOCORE}'"
        )
    return body
