"""moto's answers to Kinesis requests, with SubscribeToShard, true polls and a true ListShards."""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Never

import moto.kinesis.models
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
from fanout.testing.kinesis.api_model import extend_model
from fanout.testing.kinesis.cbor import CBOR, JSON, json_to_cbor, speaks_cbor
from fanout.testing.kinesis.consumers import Refusal, RefusedError
from fanout.testing.kinesis.list_shards import (
    ListShardsError,
    decode_token,
    encode_token,
    filter_shards,
)
from fanout.testing.kinesis.moto_stream import MAX_TAGS, invalid_argument, refuse_dry_run
from fanout.testing.kinesis.polling import ShardIterator, encode_answer, read_page
from fanout.testing.kinesis.queue_responses import QueueResponses
from fanout.testing.kinesis.request_checks import (
    read_request,
    serialization_error,
    validation_error,
)
from fanout.testing.kinesis.resource_policy import allows, read_policy
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
_backends: Any = moto.kinesis.models.kinesis_backends
_ACCOUNT = re.compile(r"[0-9]{12}")
# The members that name a resource, the most exact one first.
_ARNS = ("ConsumerARN", "QueueARN", "ResourceARN", "StreamARN")

# moto reads requests and writes answers by it.
extend_model(get_service_model("kinesis"))

# The default pages of the API reference.
_SHARDS = 1_000
_POLL_RECORDS = 10_000
_STREAMS = 100
_CONSUMERS = 100
# What the NextToken of ListShards holds already.
_WITHOUT_TOKEN = (
    "StreamName",
    "StreamARN",
    "ExclusiveStartShardId",
    "StreamCreationTimestamp",
    "ShardFilter",
)


class Response(QueueResponses):
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
        self._check_owner(action)
        return super().call_action()

    def get_current_account(self) -> str:
        """Take an id of an access key that is an account's number for that account."""
        key = self._access_key()
        return key if _ACCOUNT.fullmatch(key) else str(super().get_current_account())

    @property
    def kinesis_backend(self) -> Any:
        """The streams of the account that the request's ARN names, or else of the caller."""
        backends = _backends[_owner(self._arn()) or self.current_account]
        if self.region not in backends:
            message = "Credential should be scoped to a valid region."
            raise JsonRESTError("InvalidSignatureException", message)
        return backends[self.region]

    def _arn(self) -> str:
        request = getattr(self, "request", {})
        return str(next((request[name] for name in _ARNS if name in request), ""))

    def _check_owner(self, action: str) -> None:
        """Refuse another account what the policy of the resource does not allow."""
        arn = self._arn()
        if _owner(arn) in {None, self.current_account}:
            return
        policy = self.kinesis_backend.resource_policies.get(arn, "{}")
        if not allows(policy, self.current_account, action, arn):
            raise JsonRESTError(
                "AccessDeniedException",
                f"User: arn:aws:iam::{self.current_account}:root is not authorized to perform: "
                f"kinesis:{action} on resource: {arn} because no resource-based policy allows the "
                f"kinesis:{action} action",
            )

    def put_resource_policy(self) -> Any:
        """Store a policy that can be read."""
        try:
            read_policy(self.request["Policy"])
        except ValueError as error:
            raise invalid_argument(str(error)) from error
        return super().put_resource_policy()

    def _access_key(self) -> str:
        """Return the id of the key that signed the request: Credential=<id>/<date>/..."""
        signed = str(self.headers.get("Authorization", ""))
        return signed.partition("Credential=")[2].partition("/")[0]

    def put_record(self) -> Any:
        """Store a record as PutRecords does, under its limits and its faults."""
        if "SequenceNumberForOrdering" in self.request and self._stream().is_automatic:
            raise invalid_argument(
                "SequenceNumberForOrdering cannot be used with the strategy AUTO."
            )
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
            dry_run=request.get("DryRun", False),
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
            if not {"StreamName", "StreamARN"} & request.keys():
                raise ListShardsError("Either NextToken or StreamName should be provided.")
            stream = self.kinesis_backend.describe_stream(
                request.get("StreamARN"), request.get("StreamName")
            )
            after = request.get("ExclusiveStartShardId", "")
            return stream, after, request.get("ShardFilter")
        for other in _WITHOUT_TOKEN:
            if other in request:
                raise ListShardsError(f"NextToken and {other} cannot be provided together.")
        name, after, shard_filter = self._decode(request["NextToken"])
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
        if request.get("DryRun"):
            raise refuse_dry_run()
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
        if request.get("DryRun"):
            raise refuse_dry_run()
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

    def _stream(self) -> EmbeddedStream:
        stream: EmbeddedStream = self.kinesis_backend.describe_stream(
            self.request.get("StreamARN"), self.request.get("StreamName")
        )
        return stream

    def create_stream(self) -> Any:
        """Create a stream with its settings, which moto leaves out."""
        request = self.request
        mode = request.get("StreamModeDetails")
        on_demand = bool(mode and mode["StreamMode"] == "ON_DEMAND")
        if not on_demand and "ShardCount" not in request:
            raise validation_error("a stream in Provisioned mode needs a ShardCount.")
        backend = self.kinesis_backend
        name = request["StreamName"]
        strategy = request.get("RecordDistributionStrategy", "USER_PARTITION_KEY")
        if strategy == "AUTO" and not on_demand:
            raise invalid_argument("RecordDistributionStrategy AUTO needs the On-Demand mode.")
        if len(request.get("Tags", {})) > MAX_TAGS:
            raise invalid_argument(f"A stream cannot have more than {MAX_TAGS} tags.")
        stream = backend.create_stream(name, request.get("ShardCount"), mode)
        stream.strategy = strategy
        stream.tags.update(request.get("Tags", {}))
        stream.max_record_bytes = request.get("MaxRecordSizeInKiB", 1024) * 1024
        stream.warm_throughput = request.get("WarmThroughputMiBps")
        return EmptyResult()

    def add_tags_to_stream(self) -> Any:
        """Add tags within their limit."""
        self._stream().add_tags(self.request["Tags"])
        return EmptyResult()

    def delete_stream(self) -> Any:
        """Delete a stream, and its consumers if that is asked for."""
        request = self.request
        self.kinesis_backend.delete_stream(
            request.get("StreamARN"),
            request.get("StreamName"),
            with_consumers=request.get("EnforceConsumerDeletion", False),
        )
        return EmptyResult()

    def split_shard(self) -> Any:
        """Split a shard of a provisioned stream."""
        stream = self._stream()
        stream.check_provisioned()
        stream.get_shard(self.request["ShardToSplit"])
        return super().split_shard()

    def merge_shards(self) -> Any:
        """Merge shards of a provisioned stream."""
        stream = self._stream()
        stream.check_provisioned()
        stream.get_shard(self.request["ShardToMerge"])
        stream.get_shard(self.request["AdjacentShardToMerge"])
        return super().merge_shards()

    def update_shard_count(self) -> Any:
        """Change the number of shards."""
        stream, target = self._stream(), self.request["TargetShardCount"]
        before = len(stream.open_shards)
        stream.update_shard_count(target)
        counts = {"CurrentShardCount": before, "TargetShardCount": target}
        return ActionResult({"StreamName": stream.stream_name, "StreamARN": stream.arn} | counts)

    def update_stream_mode(self) -> Any:
        """Change the mode; a provisioned stream is distributed by partition key."""
        stream = self._stream()
        if self.request["StreamModeDetails"]["StreamMode"] == "PROVISIONED":
            stream.check_no_queues()
        stream.stream_mode = self.request["StreamModeDetails"]
        if not stream.is_on_demand:
            stream.strategy, stream.warm_throughput = "USER_PARTITION_KEY", None
        return EmptyResult()

    def update_max_record_size(self) -> Any:
        """Change how large a record may be."""
        self._stream().max_record_bytes = self.request["MaxRecordSizeInKiB"] * 1024
        return EmptyResult()

    def update_stream_record_distribution_strategy(self) -> Any:
        """Change who distributes the records, at once."""
        self._stream().set_strategy(self.request["RecordDistributionStrategy"])
        return EmptyResult()

    def update_stream_warm_throughput(self) -> Any:
        """Change the warm throughput of an on-demand stream."""
        stream = self._stream()
        if not stream.is_on_demand or self.kinesis_backend.commitment["Status"] == "DISABLED":
            raise invalid_argument(
                "Warm throughput needs the On-Demand mode, and an account with "
                "MinimumThroughputBillingCommitment."
            )
        stream.warm_throughput = self.request["WarmThroughputMiBps"]
        names = {"StreamName": stream.stream_name, "StreamARN": stream.arn}
        return ActionResult(names | {"WarmThroughput": stream.warmth()})

    def describe_account_settings(self) -> Any:
        """Describe the commitment of the account."""
        commitment = self.kinesis_backend.commitment
        return ActionResult({"MinimumThroughputBillingCommitment": commitment})

    def update_account_settings(self) -> Any:
        """Begin a commitment, or end it after its first day."""
        commitment = self.kinesis_backend.commitment
        wanted = self.request["MinimumThroughputBillingCommitment"]["Status"]
        if wanted == "DISABLED" and commitment["Status"] != "DISABLED":
            commitment["Status"] = "ENABLED_UNTIL_EARLIEST_ALLOWED_END"
        elif wanted == "ENABLED" and commitment["Status"] == "DISABLED":
            now = datetime.now(UTC).replace(microsecond=0)
            commitment |= {"StartedAt": now, "EarliestAllowedEndAt": now + timedelta(days=1)}
            commitment["Status"] = wanted
        elif wanted == "ENABLED":
            commitment["Status"] = wanted
        return self.describe_account_settings()

    def list_stream_consumers(self) -> Any:
        """Return a page of consumers, in the order of their registration."""
        consumers = self._stream().consumers
        begin = 0
        if token := self.request.get("NextToken"):
            try:
                _, after, _ = self._decode(token)
                begin = int(after)
            except ValueError as error:
                raise invalid_argument(str(error)) from error
        stop = begin + self.request.get("MaxResults", _CONSUMERS)
        answer: dict[str, Any] = {"Consumers": [each.to_json() for each in consumers[begin:stop]]}
        if stop < len(consumers):
            answer["NextToken"] = encode_token(self.request["StreamARN"], str(stop), None)
        return ActionResult(answer)

    def _decode(self, token: str) -> tuple[str, str, dict[str, Any] | None]:
        """Read a NextToken that has not expired."""
        stream, after, shard_filter, issued = decode_token(token)
        life = self.kinesis_backend.state.rules.token_life
        if time.monotonic() - issued >= life:
            message = f"The NextToken has expired: it is older than {life:g} seconds."
            raise JsonRESTError("ExpiredNextTokenException", message)
        return stream, after, shard_filter

    def tag_resource(self) -> Any:
        """Tag a consumer, a queue or a stream."""
        arn, tags = self.request["ResourceARN"], self.request["Tags"]
        if "/consumer/" in arn or ":queue/" in arn:
            self._tags_of_resource().update(tags)
        else:
            self.kinesis_backend.describe_stream(arn, None).add_tags(tags)
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
        backend = self.kinesis_backend
        tagged: Any
        if "/consumer/" in arn:
            tagged = backend.find_consumer(None, None, arn)[1]
        elif ":queue/" in arn:
            tagged = backend.find_queue(arn)
        else:
            tagged = backend.describe_stream(arn, None)
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
        if request.get("DryRun"):
            raise refuse_dry_run()
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


def _owner(arn: str) -> str | None:
    parts = arn.split(":")
    return parts[4] if len(parts) > 4 and _ACCOUNT.fullmatch(parts[4]) else None  # noqa: PLR2004


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
