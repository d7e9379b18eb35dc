"""The undecoded bodies of SubscribeToShard and GetRecords, taken out of botocore's response parser.

botocore parses records one by one into dicts, an order of magnitude slower than fanout.kinesis does
it, reports an error frame that comes first as a parser error, and reads the whole of an answer to
GetRecords before anybody knows its size. Everything before the body stays botocore's: endpoint
rules, signing, credentials, error responses. The hook touches three inner names of one client,
`_endpoint._response_parser_factory`, `has_streaming_output` of the operation, and
`_create_event_stream` and `_do_parse` of the parser; `take_raw_body` fails loudly if one moves. It
also sets how far aiohttp reads ahead, `_low_water` and `_high_water` of a stream with slots.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from aiobotocore.parsers import AioJSONParser, AioResponseParserFactory
from aiobotocore.response import StreamingBody

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ("RawBody", "deliver_raw_bodies", "take_raw_body")


# Where the parsed response of GetRecords has its body.
_BODY: Final = "Body"

_CHUNK: Final = 64 << 10


class RawBody:
    """Stand in botocore's parsed response for what it would have built from the body.

    Args:
        response: The aiohttp response, its body unread.
    """

    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def size(self) -> int | None:
        """The bytes of the body; None where the service does not say, as for a subscription."""
        length: int | None = self._response.content_length
        return length

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, in chunks of up to 64 KiB.

        While nobody takes, about 256 KiB are read ahead; the rest waits at the service.

        Cancellation: atomic, a chunk is returned or stays in the response.
        """
        content = self._response.content
        # aiohttp reads three times as far ahead, which is most of the memory of many shards. It
        # has an option for that, but botocore does not pass it on.
        content._low_water, content._high_water = _CHUNK, 2 * _CHUNK  # noqa: SLF001
        chunks: AsyncIterator[bytes] = content.iter_chunked(_CHUNK)
        return chunks

    def close(self) -> None:
        """Close the connection at once, unless the body was read to its end."""
        self._response.close()

    async def get_initial_response(self) -> Any:
        """Answer the parser, which wants an initial-response frame before it returns.

        The frame of SubscribeToShard has no content, so one is made up, and what the service
        really sends first is left in the body.
        """
        return SimpleNamespace(payload=b"{}")


class _RawParser(AioJSONParser):  # type: ignore[misc]  # botocore is untyped
    def _create_event_stream(self, response: Mapping[str, Any], shape: Any) -> RawBody:  # noqa: ARG002  # the signature is botocore's
        return RawBody(response["body"])

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


def deliver_raw_bodies(client: Any) -> None:
    """Make a client, and no other of its session, answer both calls with a RawBody."""
    client._endpoint._response_parser_factory = _RawParserFactory()  # noqa: SLF001  # no public hook exists
    client.meta.service_model.operation_model("GetRecords").has_streaming_output = True


def take_raw_body(response: Mapping[str, Any]) -> RawBody:
    """Take the raw body out of the response of SubscribeToShard or GetRecords.

    Raises:
        SetupError: botocore decoded the body after all: its internals have changed.
    """
    body = response.get("EventStream") or response.get(_BODY)
    if not isinstance(body, RawBody):
        if body is not None:
            body.close()
        raise SetupError(
            "this version of aiobotocore does not let fanout read the raw body of a response; "
            "install one that fanout was tested with (see constraints.txt)"
        )
    return body
