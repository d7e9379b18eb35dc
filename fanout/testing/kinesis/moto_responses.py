"""moto's answers to Kinesis requests, with SubscribeToShard, true polls and a true ListShards."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Never

import moto.kinesis.responses
from moto.core.exceptions import JsonRESTError
from moto.core.responses import ActionResult, EmptyResult
from moto.core.utils import camelcase_to_underscores, get_service_model

from fanout.testing.caller import Caller, caller_of
from fanout.testing.faults import (
    CutPoll,
    CutPut,
    EmptyPoll,
    GoAwayAtCall,
    IgnoreCall,
    IgnoreSubscribe,
    RefuseCall,
    RefuseRecords,
    RefuseSubscribe,
)
from fanout.testing.kinesis.cbor import CBOR, JSON, json_to_cbor, speaks_cbor
from fanout.testing.kinesis.consumers import Refusal, RefusedError
from fanout.testing.kinesis.list_shards import (
    ListShardsError,
    decode_token,
    encode_token,
    filter_shards,
)
from fanout.testing.kinesis.moto_stream import invalid_argument
from fanout.testing.kinesis.polling import ShardIterator, encode_answer, read_page
from fanout.testing.kinesis.request_checks import read_request, serialization_error
from fanout.testing.kinesis.server_state import now_in_millis
from fanout.testing.kinesis.shard import Page, PositionRefusedError
from fanout.testing.kinesis.subscribe import open_subscription, stream_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.model import StructureShape

    from fanout.testing.kinesis.consumers import Consumer
    from fanout.testing.kinesis.moto_stream import EmbeddedStream
    from fanout.testing.kinesis.server_state import ServerState

_logger = logging.getLogger(__name__)

# moto's types stay outside: they describe the backend that ours replaces.
_responses: Any = moto.kinesis.responses

# The default pages of the API reference.
_SHARDS = 1_000
_POLL_RECORDS = 10_000
_STREAMS = 100


class Response(_responses.KinesisResponse):  # type: ignore[misc] # moto is untyped here
    """Answer one request; `request` is what it asks for, checked."""

    request: dict[str, Any]

    def _dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """Answer mistakes of the client, and those of ours, as the service does."""
        try:
            return super()._dispatch(*args, **kwargs)
        except ConnectionAbortedError:
            raise
        except UnicodeDecodeError:
            return _as_answer(serialization_error("The body of the request is not UTF-8."))
        except JsonRESTError as error:
            return _as_answer(error)
        except Exception:  # the service answers a failure of its own with a code, not a page
            _logger.warning("a call failed", exc_info=True)
            return _error(500, "InternalFailure", "The embedded server failed: see its log.")

    def call_action(self) -> Any:
        """Refuse or ignore the call where a fault asks for it, and check what it asks for."""
        state: ServerState = self.kinesis_backend.state
        action = self._get_action()
        environ = self.normalized_request.environ
        encoding = "CBOR" if speaks_cbor(environ) else "JSON"
        _logger.debug("%s: %s %s", action, environ["SERVER_PROTOCOL"], encoding)
        if revoked := state.faults.at_key(self._access_key()):
            return _refuse(RefuseCall(action=action, code=revoked.code, message=revoked.message))
        fault = state.faults.at_call(action)
        if isinstance(fault, RefuseCall):
            return _refuse(fault)
        if isinstance(fault, IgnoreCall):
            _never_answer(self._caller)
        if isinstance(fault, GoAwayAtCall):
            self._caller.leave()
            raise ConnectionAbortedError("injected fault: the connection is closed")
        asked_for = _operations().get(action)
        if asked_for is None:
            message = f"The embedded server has no operation {action}."
            raise JsonRESTError("UnknownOperationException", message)
        self.request = read_request(asked_for, self.raw_body)
        return super().call_action()

    def _access_key(self) -> str:
        """Return the id of the key that signed the request: Credential=<id>/<date>/..."""
        signed = str(self.headers.get("Authorization", ""))
        return signed.partition("Credential=")[2].partition("/")[0]

    def put_record(self) -> Any:
        """Store a record as PutRecords does, under its limits and its faults."""
        names = ("PartitionKey", "ExplicitHashKey", "Data")
        answer = self._put([{name: self.request.get(name) for name in names}])
        (result,) = answer["Records"]
        if "ErrorCode" in result:
            status = 500 if result["ErrorCode"] == "InternalFailure" else 400
            return _error(status, result["ErrorCode"], result["ErrorMessage"])
        result["EncryptionType"] = answer["EncryptionType"]
        return 200, {"Content-Type": JSON}, json.dumps(result)

    def put_records(self) -> Any:
        """Encode a large call once."""
        answer = self._put(self.request["Records"])
        return 200, {"Content-Type": JSON}, json.dumps(answer)

    def _put(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        request = self.request
        fault = self.kinesis_backend.state.faults.at_put()
        result: dict[str, Any] = self.kinesis_backend.put_records(
            request.get("StreamARN"),
            request.get("StreamName"),
            records,
            fault if isinstance(fault, RefuseRecords) else None,
        )
        if isinstance(fault, CutPut):
            self._caller.cut()
            raise ConnectionAbortedError("injected fault: the connection is cut")
        return result

    def describe_stream(self) -> Any:
        """Return the stream with a page of its shards; moto always begins with the first one."""
        request = self.request
        stream = self.kinesis_backend.describe_stream(
            request.get("StreamARN"), request.get("StreamName")
        )
        with stream.lock:
            return ActionResult(
                stream.to_json(request.get("Limit"), request.get("ExclusiveStartShardId", ""))
            )

    def list_shards(self) -> Any:
        """Return a page of shards."""
        request = self.request
        try:
            stream, after, shard_filter = self._asked_for(request)
            with stream.lock:
                shards = filter_shards(stream.shards.values(), shard_filter)
        except ListShardsError as error:
            raise invalid_argument(str(error)) from error
        following = [shard for shard in shards if shard.shard_id > after]
        page = following[: request.get("MaxResults", _SHARDS)]
        answer: dict[str, Any] = {"Shards": [shard.to_json() for shard in page]}
        if len(page) < len(following):
            last = page[-1].shard_id
            answer["NextToken"] = encode_token(stream.stream_name, last, shard_filter)
        return ActionResult(answer)

    def _asked_for(
        self, request: dict[str, Any]
    ) -> tuple[EmbeddedStream, str, dict[str, Any] | None]:
        if "NextToken" not in request:
            stream = self.kinesis_backend.describe_stream(
                request.get("StreamARN"), request.get("StreamName")
            )
            after = request.get("ExclusiveStartShardId", "")
            return stream, after, request.get("ShardFilter")
        if "StreamName" in request:
            raise ListShardsError("NextToken and StreamName cannot be provided together.")
        name, after, shard_filter = decode_token(request["NextToken"])
        return self.kinesis_backend.describe_stream(None, name), after, shard_filter

    def get_shard_iterator(self) -> Any:
        """Answer with an iterator that holds the number after which to read."""
        request = self.request
        stream = self.kinesis_backend.describe_stream(
            request.get("StreamARN"), request.get("StreamName")
        )
        shard = stream.get_shard(request["ShardId"])
        position = {
            "Type": request["ShardIteratorType"],
            "SequenceNumber": request.get("StartingSequenceNumber"),
            "Timestamp": request.get("Timestamp"),
        }
        with self._counting_violations(), stream.lock:
            stream.meters[shard.shard_id].note_call(
                "GetShardIterator", shard.shard_id, self.kinesis_backend.state.rules
            )
            try:
                cursor = shard.cursor_at(position, now_in_millis())
            except PositionRefusedError as error:
                raise invalid_argument(str(error)) from error
        token = ShardIterator.now(stream.stream_name, shard.shard_id, cursor).encode()
        return 200, {"Content-Type": JSON}, json.dumps({"ShardIterator": token})

    def get_records(self) -> Any:
        """Read on from an iterator; a drained closed shard names its children instead of a next."""
        request = self.request
        try:
            iterator = ShardIterator.decode(request["ShardIterator"])
        except ValueError as error:
            raise invalid_argument(str(error)) from error
        stream = self.kinesis_backend.describe_stream(request.get("StreamARN"), iterator.stream)
        shard = stream.get_shard(iterator.shard)
        state: ServerState = self.kinesis_backend.state
        state.count_poll(shard.shard_id)
        meter = stream.meters[shard.shard_id]
        with self._counting_violations(), stream.lock:
            meter.note_call("GetRecords", shard.shard_id, state.rules)
            iterator.check_age(state.rules)
        fault = state.faults.at_poll(shard.shard_id)
        with stream.lock:
            if isinstance(fault, EmptyPoll):
                page = Page((), 0, iterator.cursor, millis_behind=1)
            else:
                limit = request.get("Limit", _POLL_RECORDS)
                page = read_page(shard, iterator.cursor, meter, limit, state.rules)
            answer = encode_answer(stream.stream_name, shard, page)
        kind = JSON
        if speaks_cbor(self.normalized_request.environ):
            # Encoded here, as a fault may cut it in half.
            kind, answer = CBOR, json_to_cbor(answer)
        headers = {"Content-Type": kind, "Content-Length": str(len(answer))}
        return (
            200,
            headers,
            _cut(answer, self._caller) if isinstance(fault, CutPoll) else answer,
        )

    @property
    def _caller(self) -> Caller:
        return caller_of(self.normalized_request.environ)

    def register_stream_consumer(self) -> Any:
        """Register a consumer with its tags, which moto leaves out."""
        request = self.request
        consumer = self.kinesis_backend.register_stream_consumer(
            request["StreamARN"], request["ConsumerName"], request.get("Tags", {})
        )
        return ActionResult({"Consumer": consumer.to_json()})

    def list_streams(self) -> Any:
        """Return a page of names, in their order; moto's has ten, and the summaries of all."""
        after = self.request.get("NextToken") or self.request.get("ExclusiveStartStreamName", "")
        streams = sorted(self.kinesis_backend.list_streams(), key=lambda each: each.stream_name)
        following = [stream for stream in streams if stream.stream_name > after]
        page = following[: self.request.get("Limit", _STREAMS)]
        answer = {
            "StreamNames": [stream.stream_name for stream in page],
            "StreamSummaries": [
                stream.to_json_summary()["StreamDescriptionSummary"] for stream in page
            ],
            "HasMoreStreams": len(page) < len(following),
        }
        if answer["HasMoreStreams"]:
            answer["NextToken"] = page[-1].stream_name
        return ActionResult(answer)

    def tag_resource(self) -> Any:
        """Tag a consumer or a stream."""
        self._tags_of_resource().update(self.request["Tags"])
        return EmptyResult()

    def untag_resource(self) -> Any:
        """Remove tags of a consumer or a stream."""
        tags = self._tags_of_resource()
        for key in self.request["TagKeys"]:
            tags.pop(key, None)
        return EmptyResult()

    def list_tags_for_resource(self) -> Any:
        """Return the tags of a consumer or a stream."""
        tags = sorted(self._tags_of_resource().items())
        return ActionResult({"Tags": [{"Key": key, "Value": value} for key, value in tags]})

    def _tags_of_resource(self) -> dict[str, str]:
        """Find what moto does not know by its ARN."""
        arn = self.request["ResourceARN"]
        tagged: Any = (
            self.kinesis_backend.find_consumer(None, None, arn)[1]
            if "/consumer/" in arn
            else self.kinesis_backend.describe_stream(arn, None)
        )
        tags: dict[str, str] = tagged.tags
        return tags

    def subscribe_to_shard(self) -> Any:
        """Answer with an event stream."""
        request = self.request
        state: ServerState = self.kinesis_backend.state
        state.count_subscribe(request["ShardId"])
        with self._counting_violations():
            return self._subscribe(state, request)

    @contextmanager
    def _counting_violations(self) -> Iterator[None]:
        """Answer with the error of a rule that the block breaks."""
        try:
            yield
        except RefusedError as error:
            self.kinesis_backend.state.count_violation(error.violation)
            raise JsonRESTError(error.refusal.code, error.refusal.message) from error

    def _subscribe(self, state: ServerState, request: dict[str, Any]) -> Any:
        shard_id = request["ShardId"]
        stream, consumer = self._consumer(request["ConsumerARN"])
        with stream.lock:
            consumer.note_call(shard_id, state.rules)
        match state.faults.at_subscribe(shard_id):
            case RefuseSubscribe() as fault:
                return _refuse(fault)
            case IgnoreSubscribe():
                _never_answer(self._caller)
            case None:
                pass
        if shard_id not in stream.shards:
            message = f"Shard {shard_id} in stream {stream.stream_name} does not exist."
            raise RefusedError("unknown_shard", Refusal("ResourceNotFoundException", message))
        position = request.get("StartingPosition") or {}
        subscription = open_subscription(
            state.rules, stream, consumer, stream.shards[shard_id], position, caller=self._caller
        )
        frames = stream_frames(state, stream, consumer, subscription)
        return 200, {"Content-Type": "application/vnd.amazon.eventstream"}, frames

    def _consumer(self, consumer_arn: str) -> tuple[EmbeddedStream, Consumer]:
        try:
            stream, consumer = self.kinesis_backend.find_consumer(None, None, consumer_arn)
        except JsonRESTError as error:
            refusal = Refusal("ResourceNotFoundException", error.message)
            raise RefusedError("unknown_consumer", refusal) from error
        return stream, consumer


def _never_answer(caller: Caller) -> Never:
    caller.wait_for_hang_up(None)
    raise ConnectionAbortedError("injected fault: the call is never answered")


def _cut(answer: bytes, caller: Caller) -> Iterator[bytes]:
    yield answer[: len(answer) // 2]
    caller.cut()
    raise ConnectionAbortedError("injected fault: the connection is cut")


def _refuse(fault: RefuseSubscribe | RefuseCall) -> tuple[int, dict[str, Any], str]:
    if fault.html:
        page = f"<html><body><h1>{fault.status} {fault.code}</h1>{fault.message}</body></html>"
        return fault.status, {"status": fault.status, "Content-Type": "text/html"}, page
    return _error(fault.status, fault.code, fault.message)


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, Any], str]:
    headers = {"status": status, "Content-Type": JSON, "X-Amzn-ErrorType": code}
    return status, headers, json.dumps({"__type": code, "message": message})


def _as_answer(error: Any) -> tuple[int, dict[str, Any], str]:
    return _error(error.code, error.error_type, error.message)


@cache
def _operations() -> dict[str, StructureShape]:
    """Return what each operation takes that the embedded server has."""
    model = get_service_model("kinesis")
    return {
        name: model.operation_model(name).input_shape
        for name in model.operation_names
        if hasattr(Response, camelcase_to_underscores(name))
    }
