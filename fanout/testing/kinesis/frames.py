"""Encode event stream frames, and the JSON inside them, as SubscribeToShard sends them.

A frame of `application/vnd.amazon.eventstream` is: total length, headers length, CRC-32 of these
eight bytes, headers, payload, CRC-32 of everything before it. Every integer is big-endian. All
headers here are strings (type 7). https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import json
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PRELUDE = struct.Struct("!II")

_CRC = struct.Struct("!I")

_STRING_HEADER = 7

_OVERHEAD = _PRELUDE.size + 2 * _CRC.size


def encode_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode one frame with both checksums; its headers have names of up to 255 bytes."""
    encoded = _encode_headers(*headers.items())
    prelude = _PRELUDE.pack(_OVERHEAD + len(encoded) + len(payload), len(encoded))
    prelude += _CRC.pack(zlib.crc32(prelude))
    checksum = zlib.crc32(payload, zlib.crc32(encoded, zlib.crc32(prelude)))
    return b"".join((prelude, encoded, payload, _CRC.pack(checksum)))


def encode_event(kind: str, payload: bytes) -> bytes:
    """Encode an event frame, such as `initial-response` or `SubscribeToShardEvent`, of JSON."""
    headers = {
        ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return encode_frame(headers, payload)


def encode_exception(code: str, message: str) -> bytes:
    """Encode an exception frame, such as `ResourceInUseException`, which ends a subscription."""
    headers = {
        ":exception-type": code,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_frame(headers, json.dumps({"message": message}).encode())


def payload_of(frame: bytes) -> bytes:
    """Return the payload of a whole frame; its checksums are not checked."""
    _, headers = _PRELUDE.unpack_from(frame)
    return frame[_PRELUDE.size + _CRC.size + headers : -_CRC.size]


@lru_cache  # most frames have the same ones
def _encode_headers(*headers: tuple[str, str]) -> bytes:
    return b"".join(_encode_header(name, value) for name, value in headers)


def _encode_header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return struct.pack(
        f"!B{len(raw_name)}sBH{len(raw_value)}s",
        len(raw_name),
        raw_name,
        _STRING_HEADER,
        len(raw_value),
        raw_value,
    )


def encode_record(
    arrival: int, data: bytes, key: str | None, number: int, encryption: str = "NONE"
) -> bytes:
    """Write a record as events and answers carry it.

    `arrival` is in milliseconds since the Unix epoch, `data` in base64, and `encryption` NONE or
    KMS.
    """
    return (
        b'{"ApproximateArrivalTimestamp":%d.%03d,"Data":"%b","EncryptionType":"%b",'
        b'%b"SequenceNumber":"%d"}'
        % (
            *divmod(arrival, 1000),
            data,
            encryption.encode(),
            b"" if key is None else b'"PartitionKey":%b,' % json.dumps(key).encode(),
            number,
        )
    )


def child_shard(shard_id: str, parents: Iterable[str], first: int, last: int) -> dict[str, Any]:
    """Describe a shard as the last event of its parents does; `last` is included in its range."""
    return {
        "ShardId": shard_id,
        "ParentShards": list(parents),
        "HashKeyRange": hash_key_range(first, last),
    }


def hash_key_range(first: int, last: int) -> dict[str, str]:
    """Write a range of hash keys, both ends included."""
    return {"StartingHashKey": str(first), "EndingHashKey": str(last)}
