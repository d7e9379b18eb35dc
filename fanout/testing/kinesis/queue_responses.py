"""Answers to requests about queues."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import moto.kinesis.responses
from moto.core.exceptions import JsonRESTError
from moto.core.responses import ActionResult, EmptyResult

from fanout.testing.caller import caller_of
from fanout.testing.kinesis.cbor import JSON
from fanout.testing.kinesis.list_shards import ListShardsError, decode_token, encode_token
from fanout.testing.kinesis.moto_stream import MAX_TAGS, invalid_argument
from fanout.testing.kinesis.request_checks import validation_error
from fanout.testing.kinesis.server_state import now_in_millis
from fanout.testing.kinesis.shard import PositionRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.kinesis.queues import EmbeddedQueue, Settling
    from fanout.testing.kinesis.server_state import ServerState

# moto's types stay outside.
_responses: Any = moto.kinesis.responses

# The defaults of the API reference.
_LIMIT = 10
_WAIT = 9
_QUEUES = 100


def _receiving(*, dead: bool) -> Callable[[Any], Any]:
    return lambda responses: responses.receive(dead=dead)


def _settling(how: Settling | None, *, dead: bool) -> Callable[[Any], Any]:
    return lambda responses: responses.settle(how, dead=dead)


class QueueResponses(_responses.KinesisResponse):  # type: ignore[misc] # moto is untyped here
    """The operations on queues; `request` is what a request asks for, checked."""

    request: dict[str, Any]

    def create_queue(self) -> Any:
        """Create a queue on an on-demand stream."""
        request = self.request
        if len(request["StreamConfigurationList"]) != 1:
            raise invalid_argument("StreamConfigurationList must contain exactly one entry.")
        if len(request.get("Tags", {})) > MAX_TAGS:
            raise invalid_argument(f"A queue cannot have more than {MAX_TAGS} tags.")
        _check_attributes(request.get("QueueAttributes", {}))
        (configuration,) = request["StreamConfigurationList"]
        start = configuration.get("StartingPosition", {"Type": "LATEST"})
        if ("Timestamp" in start) != (start["Type"] == "AT_TIMESTAMP"):
            raise validation_error("a Timestamp goes with the type AT_TIMESTAMP, and with no other")
        stream = self.kinesis_backend.describe_stream(configuration["StreamARN"], None)
        try:
            with stream.lock:
                cursors = {
                    shard.shard_id: shard.cursor_at(start, now_in_millis())
                    for shard in stream.shards.values()
                }
                queue = self.kinesis_backend.create_queue(request, stream, start, cursors)
        except PositionRefusedError as error:
            raise invalid_argument(str(error)) from error
        return ActionResult({"QueueDescription": queue.to_json() | {"QueueStatus": "CREATING"}})

    def describe_queue(self) -> Any:
        """Describe a queue."""
        return ActionResult({"QueueDescription": self._queue().to_json()})

    def update_queue(self) -> Any:
        """Change a queue at once."""
        attributes = self.request["QueueAttributes"]
        _check_attributes(attributes)
        queue = self._queue()
        with queue.stream.lock:
            queue.update(attributes)
        return ActionResult({"QueueDescription": queue.to_json() | {"QueueStatus": "UPDATING"}})

    def delete_queue(self) -> Any:
        """Delete a queue; whoever waits for its records is told so."""
        queue = self._queue()
        with queue.stream.lock:
            queue.stream.queues.remove(queue)
            queue.deleted = True
            queue.changed.notify_all()
        return EmptyResult()

    def list_queues(self) -> Any:
        """Return a page of queues, in the order of their creation."""
        request = self.request
        wanted = [each["StreamARN"] for each in request.get("StreamFilter", ())]
        found = [
            queue
            for stream in self.kinesis_backend.list_streams()
            for queue in stream.queues
            if not wanted or stream.arn in wanted
        ]
        begin = 0
        if token := request.get("NextToken"):
            try:
                begin = int(decode_token(token)[1])
            except (ListShardsError, ValueError) as error:
                raise invalid_argument("NextToken is invalid.") from error
        stop = begin + request.get("MaxResults", _QUEUES)
        answer: dict[str, Any] = {"QueueSummaries": [q.to_summary() for q in found[begin:stop]]}
        if stop < len(found):
            answer["NextToken"] = encode_token("queues", str(stop), None)
        return ActionResult(answer)

    def _queue(self) -> EmbeddedQueue:
        queue: EmbeddedQueue = self.kinesis_backend.find_queue(self.request["QueueARN"])
        return queue

    def receive(self, *, dead: bool) -> Any:
        """Lend records, or dead letters, as soon as there are some."""
        request, queue = self.request, self._queue()
        limit = request.get("Limit", _LIMIT)
        hidden = request.get("VisibilityTimeoutSeconds")
        deadline = time.monotonic() + request.get("WaitTimeSeconds", _WAIT)
        left = False

        def leave() -> None:
            nonlocal left
            with queue.stream.lock:
                left = True
                queue.changed.notify_all()

        caller = caller_of(self.normalized_request.environ)
        watched = False
        state: ServerState = self.kinesis_backend.state
        try:
            with queue.stream.lock:
                while True:
                    if queue.deleted:
                        raise self.kinesis_backend.no_queue(queue.arn)
                    now = time.monotonic()
                    # Who has left gets nothing that others would wait for.
                    taken = [] if left else queue.receive(limit, hidden, dead=dead)
                    if taken or left or state.closing or now >= deadline:
                        break
                    if not watched:
                        watched = True
                        caller.on_gone(leave)
                    until = min(deadline, queue.next_visible() or deadline)
                    queue.changed.wait(max(until - now, 0.001))
        finally:
            if watched:
                caller.on_gone(None)
        return 200, {"Content-Type": JSON}, json.dumps({"QueueRecords": taken})

    def settle(self, how: Settling | None, *, dead: bool) -> Any:
        """Settle received records, each by itself; None changes their visibility timeout."""
        queue = self._queue()
        successful, failed = [], []
        with queue.stream.lock:
            for entry in self.request["Entries"]:
                receipt = entry["ReceiptHandle"]
                settling = entry["VisibilityTimeoutSeconds"] if how is None else how
                error = queue.settle(receipt, settling, dead=dead)
                if error is None:
                    successful.append({"ReceiptHandle": receipt})
                else:
                    code, message = error
                    failed.append(
                        {"ReceiptHandle": receipt, "ErrorCode": code, "ErrorMessage": message}
                    )
        return ActionResult({"Successful": successful, "Failed": failed})

    receive_queue_records = _receiving(dead=False)
    receive_dead_letter_queue_records = _receiving(dead=True)
    acknowledge_queue_records = _settling("acknowledge", dead=False)
    acknowledge_dead_letter_queue_records = _settling("acknowledge", dead=True)
    restore_dead_letter_queue_records = _settling("restore", dead=True)
    update_queue_records_visibility = _settling(None, dead=False)
    update_dead_letter_queue_records_visibility = _settling(None, dead=True)


def _check_attributes(attributes: dict[str, Any]) -> None:
    dead = attributes.get("DeadLetterConfiguration")
    if dead is not None and dead["TargetType"] == "BUILT_IN" and "MaxReceiveCount" not in dead:
        raise JsonRESTError(
            "InvalidArgumentException", "MaxReceiveCount is required with the TargetType BUILT_IN."
        )
