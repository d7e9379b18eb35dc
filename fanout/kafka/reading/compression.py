"""What is inside a compressed record batch, with a bound on its size.

Arrow has every codec that Kafka has, and inflates step by step, so that a batch that grows beyond
its bound is refused before its memory is taken. aiokafka's own decoder inflates first and asks
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fanout.errors import MalformedEventError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("inflate",)

# By their numbers in a batch's attributes:
# https://kafka.apache.org/documentation/#recordbatch
_CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

# The JVM's snappy library cuts what it compresses into blocks, under a header of its own: a name,
# a version and the oldest version that can read it. Other clients write one block, without any.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = len(_XERIAL) + 8

_STEP: Final = 64 * 1024


def inflate(compressed: memoryview, codec: int, max_bytes: int) -> list[bytes]:
    """Return what a batch holds, in pieces.

    Args:
        compressed: The batch behind its header.
        codec: Its codec's number in Kafka's protocol.
        max_bytes: The most bytes that it may hold.

    Raises:
        MalformedEventError: If the bytes are not of that codec, or hold more than `max_bytes`.
        SetupError: If this build of pyarrow lacks the codec.
    """
    name = _CODECS.get(codec)
    if name is None:
        raise MalformedEventError(f"codec {codec} is none of Kafka's")
    if not pa.Codec.is_available(name):
        raise SetupError(
            f"the records are compressed with {name}, which this build of pyarrow lacks: "
            "install pyarrow from PyPI or conda-forge, whose builds have it"
        )
    whole: list[bytes] = []
    pieces = _snappy(compressed, max_bytes) if name == "snappy" else _stream(compressed, name)
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise _too_large()
            whole.append(piece)
    except (OSError, ValueError) as error:
        # Arrow's sentence names the codec and what its library says, and nothing of the data.
        raise MalformedEventError(f"they cannot be decompressed: {error}") from error
    return whole


def _stream(compressed: memoryview, name: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(compressed), name) as stream:
        while piece := stream.read(_STEP):
            yield piece


def _snappy(compressed: memoryview, max_bytes: int) -> Iterator[bytes]:
    if bytes(compressed[: len(_XERIAL)]) != _XERIAL:
        yield _block(compressed, max_bytes)
        return
    at = _XERIAL_HEADER
    while at < len(compressed):
        size = int.from_bytes(compressed[at : at + 4])
        block = compressed[at + 4 : at + 4 + size]
        if len(block) != size or not size:
            raise MalformedEventError("they cannot be decompressed: a block of snappy is cut short")
        yield _block(block, max_bytes)
        at += 4 + size


def _block(block: memoryview, max_bytes: int) -> bytes:
    """Inflate one block, which begins with its size as a varint."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004 - a varint's last byte
            break
    if size > max_bytes:
        raise _too_large()
    whole: bytes = pa.decompress(block, size, "snappy", asbytes=True)
    return whole


def _too_large() -> MalformedEventError:
    return MalformedEventError(
        "decompressed, they take more than max_event_bytes: raise it, if they are meant to"
    )
