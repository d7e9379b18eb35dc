"""Bytes of a SubscribeToShard body to Arrow: fanout against botocore's own event stream parser.

Both get the same body in the same chunks and build the same columns.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.harness import Report, Row, median_seconds, peak_rss_bytes
from fanout.core.events import Split
from fanout.kinesis.reading.deaggregation import Deaggregator
from fanout.kinesis.reading.decode import SCHEMA, decode_event
from fanout.kinesis.reading.event_stream import FrameDecoder
from fanout.testing.kinesis.frames import encode_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ("WORKLOADS", "Workload", "columns", "run")

CHUNK_BYTES = 64 * 1024
STREAM = "orders"
SHARD_ID = "shardId-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The data to decode: `events` events of `records` records of `record_bytes` random bytes."""

    record_bytes: int
    records: int
    events: int

    def chunks(self) -> list[bytes]:
        """Return the body, the same bytes each time; its events are copies of one."""
        random = Random(self.record_bytes)  # noqa: S311  # reproducible, not secret
        event = {
            "Records": [self._record(random, number) for number in range(self.records)],
            "ContinuationSequenceNumber": _sequence_number(self.records),
            "MillisBehindLatest": 0,
        }
        body = encode_event("SubscribeToShardEvent", json.dumps(event).encode()) * self.events
        return [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]

    def _record(self, random: Random, number: int) -> dict[str, Any]:
        return {
            "ApproximateArrivalTimestamp": (1_795_218_308_174 + number) / 1000,
            "Data": base64.b64encode(random.randbytes(self.record_bytes)).decode(),
            "EncryptionType": "NONE",
            "PartitionKey": f"user-{random.randrange(10_000)}",
            "SequenceNumber": _sequence_number(number),
        }


WORKLOADS = (
    Workload(record_bytes=1024, records=1000, events=20),
    Workload(record_bytes=100, records=10_000, events=5),
)


def _sequence_number(number: int) -> str:
    return str(49680412602923508161381989364352061050721676279901323266 + number)


def decode_by_fanout(chunks: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Decode as KinesisSource does."""
    frames = FrameDecoder()
    deaggregator, shard = Deaggregator(), Split(SHARD_ID)
    for chunk in chunks:
        frames.feed(chunk)
        while (frame := frames.next_frame()) is not None:
            event = decode_event(frame.payload, stream=STREAM, shard_id=SHARD_ID)
            yield deaggregator.deaggregate(event.records, shard).records


def decode_by_botocore(chunks: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Decode as a loop over `response["EventStream"]` does, and turn its dicts into columns."""
    # Imported here because the memory of fanout's own run should not count botocore.
    import botocore.session  # noqa: PLC0415 (see above)
    from botocore.eventstream import EventStreamBuffer  # noqa: PLC0415 (see above)
    from botocore.parsers import EventStreamJSONParser  # noqa: PLC0415 (see above)

    operation = botocore.session.get_session().get_service_model("kinesis").operation_model
    shape = operation("SubscribeToShard").output_shape.members["EventStream"]
    parser = EventStreamJSONParser()
    buffer = EventStreamBuffer()
    for chunk in chunks:
        buffer.add_data(chunk)
        for message in buffer:
            event = parser.parse(message.to_response_dict(), shape)["SubscribeToShardEvent"]
            yield columns(event["Records"])


def columns(records: Sequence[dict[str, Any]], shard_id: str = SHARD_ID) -> pa.RecordBatch:
    """Turn botocore's dicts into the columns that fanout delivers."""
    arrivals = [record["ApproximateArrivalTimestamp"] for record in records]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record["PartitionKey"] for record in records], pa.string()),
            pa.array([record["Data"] for record in records], pa.binary()),
            pa.repeat(STREAM, len(records)),
            pa.repeat(shard_id, len(records)),
            pa.array([record["SequenceNumber"] for record in records], pa.string()),
            pa.array(arrivals, SCHEMA.field("approximateArrivalTimestamp").type),
            pa.repeat(0, len(records)),
        ],
        schema=SCHEMA,
    )


CONTENDERS: dict[str, Callable[[Sequence[bytes]], Iterator[pa.RecordBatch]]] = {
    "fanout": decode_by_fanout,
    "botocore": decode_by_botocore,
}


def run(rounds: int, workloads: Sequence[Workload] = WORKLOADS) -> Report:
    """Measure both contenders with every workload.

    Args:
        rounds: How often each is timed.
        workloads: What to decode.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for workload in workloads:
        # Two events show what decoding holds; a longer body would weigh on both alike.
        short = replace(workload, events=2)
        peaks = {name: peak_rss_bytes(partial(_exhaust, name, short)) for name in CONTENDERS}
        chunks = workload.chunks()
        contenders = {name: partial(_exhaust, name, chunks) for name in CONTENDERS}
        seconds = median_seconds(f"decode, {workload.record_bytes} B", contenders, rounds)
        for name in CONTENDERS:
            records_per_second = workload.records * workload.events / seconds[name]
            rows.append(
                Row(
                    name=name,
                    record_bytes=workload.record_bytes,
                    records_per_second=records_per_second,
                    bytes_per_second=records_per_second * workload.record_bytes,
                    peak_rss_bytes=peaks[name],
                )
            )
        ratio = seconds["botocore"] / seconds["fanout"]
        ratios[f"decode/{workload.record_bytes}/vs_botocore"] = ratio
    return Report(scenario="decode", rows=rows, ratios=ratios)


def _exhaust(name: str, work: Workload | Sequence[bytes]) -> None:
    """Decode every batch and drop it, as a consumer that keeps up would."""
    chunks = work.chunks() if isinstance(work, Workload) else work
    for _ in CONTENDERS[name](chunks):
        pass
