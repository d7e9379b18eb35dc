"""Arrow to JSON, Avro and Protobuf: fanout's encoders against a writer for each of `to_pylist`."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from benchmarks.decode_records import BATCH, PEERS, SHAPES, SIZES, message_class, rows_of
from benchmarks.harness import Report, Row, median_seconds, peak_rss_bytes
from fanout.decoding import Avro, Json, Protobuf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ("contenders", "run")


def contenders(shape: str, size: int) -> dict[str, Callable[[], Any]]:
    """Return what makes payloads of the records of a shape, by the format and the encoder."""
    import fastavro  # noqa: PLC0415 - the development environment has it

    ddl, avsc = SHAPES[shape]
    message = message_class(shape)
    as_json, as_avro, as_protobuf = Json(ddl), Avro(avsc), Protobuf(message)
    kind = as_avro.read(pa.array([], pa.binary()))[0].type
    columns = pa.RecordBatch.from_struct_array(pa.array(rows_of(shape, size), kind))
    parsed = fastavro.parse_schema(json.loads(json.dumps(avsc)))
    write_json = msgspec.json.Encoder().encode

    def write_avro(row: Any) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, row)
        return body.getvalue()

    def each(write: Callable[[Any], bytes]) -> list[bytes]:
        return [write(row) for row in columns.to_pylist()]

    return {
        "json fanout": lambda: as_json.encode(columns),
        "json msgspec": partial(each, write_json),
        "avro fanout": lambda: as_avro.encode(columns),
        "avro fastavro": partial(each, write_avro),
        "protobuf fanout": lambda: as_protobuf.encode(columns),
        "protobuf google": partial(each, lambda row: message(**row).SerializeToString()),
    }


def run(rounds: int, sizes: Sequence[int] = SIZES) -> Report:
    """Measure each format with both shapes.

    Args:
        rounds: How often each is timed.
        sizes: About how many bytes a record has as JSON.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for shape in SHAPES:
        for size in sizes:
            timed = contenders(shape, size)
            seconds = median_seconds(f"encode-records, {shape}, {size} B", timed, rounds)
            rows += [_row(shape, size, name, seconds[name]) for name in timed]
            for kind, peer in PEERS.items():
                ratio = seconds[f"{kind} {peer}"] / seconds[f"{kind} fanout"]
                ratios[f"encode-records/{shape} {size}/vs_{peer}"] = ratio
    return Report(scenario="encode-records", rows=rows, ratios=ratios)


def _row(shape: str, size: int, name: str, seconds: float) -> Row:
    return Row(
        name=f"{shape} {name}",
        record_bytes=size,
        records_per_second=BATCH / seconds,
        bytes_per_second=BATCH * size / seconds,
        peak_rss_bytes=peak_rss_bytes(partial(_once, shape, size, name)),
    )


def _once(shape: str, size: int, name: str) -> None:
    contenders(shape, size)[name]()
