"""The undecoded body of SubscribeToShard, taken out of botocore's response parser.

botocore parses events one by one into dicts, an order of magnitude slower than fanout.kinesis does
it, and reports an error frame that comes first as a parser error. Everything before the body stays
botocore's: endpoint rules, signing, credentials, error responses. The hook touches two private
names, `_endpoint._response_parser_factory` of one client and `_create_event_stream` of its parser;
`take_raw_body` fails loudly if either moves.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aiobotocore.parsers import AioJSONParser, AioResponseParserFactory

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ("RawEventStream", "deliver_raw_event_streams", "take_raw_body")


class RawEventStream:
    """Stand in botocore's parsed response for the stream of events that it would have built.

    Args:
        response: The aiohttp response, its body unread.
    """

    def __init__(self, response: Any) -> None:
        self._response = response

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives, in chunks of what the socket had, about 128 KiB.

        Cancellation: atomic, a chunk is returned or stays in the response.
        """
        chunks: AsyncIterator[bytes] = self._response.content.iter_any()
        return chunks

    def close(self) -> None:
        """Close the connection at once; what is left of the body is not read."""
        self._response.close()

    async def get_initial_response(self) -> Any:
        """Answer the parser, which wants an initial-response frame before it returns.

        The frame of SubscribeToShard has no content, so one is made up, and what the service
        really sends first is left in the body.
        """
        return SimpleNamespace(payload=b"{}")


class _RawParser(AioJSONParser):  # type: ignore[misc]  # botocore is untyped
    def _create_event_stream(self, response: Mapping[str, Any], shape: Any) -> RawEventStream:  # noqa: ARG002  # the signature is botocore's
        return RawEventStream(response["body"])


class _RawParserFactory(AioResponseParserFactory):  # type: ignore[misc]  # botocore is untyped
    def create_parser(self, protocol_name: str) -> Any:
        if protocol_name == "json":
            return _RawParser(**self._defaults)
        return super().create_parser(protocol_name)


def deliver_raw_event_streams(client: Any) -> None:
    """Make a client, and no other of its session, answer event streams with RawEventStream."""
    client._endpoint._response_parser_factory = _RawParserFactory()  # noqa: SLF001  # no public hook exists


def take_raw_body(response: Mapping[str, Any]) -> RawEventStream:
    """Take the raw body out of a SubscribeToShard response.

    Raises:
        SetupError: botocore decoded the body after all: its internals have changed.
    """
    body = response["EventStream"]
    if not isinstance(body, RawEventStream):
        body.close()
        raise SetupError(
            "this version of aiobotocore does not let fanout read the raw event stream; "
            "install one that fanout was tested with (see constraints.txt)"
        )
    return body
