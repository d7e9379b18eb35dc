from __future__ import annotations

import gzip
import struct
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import MalformedEventError
from fanout.kafka.reading.record_batches import decompress_records
from tests.support.damage import damaged
from tests.support.kafka.record_batches import CODECS, compress, xerial

TEXT = b"to be or not to be, that is the question. " * 100
bodies = st.binary(max_size=100).map(lambda piece: piece * 30)


def opened(data: bytes, codec: str, max_bytes: int = 1 << 20) -> bytes:
    return b"".join(decompress_records(memoryview(data), CODECS.index(codec), max_bytes))


@pytest.mark.parametrize("codec", CODECS[1:])
@given(body=bodies)
def test_what_was_compressed_comes_back(codec: str, body: bytes) -> None:
    assert opened(compress(body, codec), codec) == body


@given(body=bodies, block=st.integers(1, 500))
def test_blocks_of_snappy_as_the_jvm_writes_them_come_back(body: bytes, block: int) -> None:
    assert opened(xerial(body, block), "snappy") == body


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_several_frames_in_a_row_are_one_batch(codec: str) -> None:
    assert opened(compress(b"a", codec) + compress(b"b", codec), codec) == b"ab"


def test_what_the_standard_library_compresses_with_gzip_comes_back() -> None:
    assert opened(gzip.compress(TEXT), "gzip") == TEXT


@pytest.mark.fault("A little batch would decompress to more than is allowed")
@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_may_hold_as_much_as_is_allowed_and_no_more(codec: str) -> None:
    data = compress(TEXT, codec)
    assert opened(data, codec, len(TEXT)) == TEXT
    with pytest.raises(MalformedEventError, match="more than max_event_bytes"):
        opened(data, codec, len(TEXT) - 1)


def test_the_blocks_of_snappy_together_may_hold_no_more() -> None:
    data = xerial(TEXT, 1000)
    assert opened(data, "snappy", len(TEXT)) == TEXT
    with pytest.raises(MalformedEventError, match="more than max_event_bytes"):
        opened(data, "snappy", len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_frame_that_is_cut_short_is_an_error_or_lacks_its_end(codec: str) -> None:
    data = compress(TEXT, codec)
    for cut in range(len(data)):
        try:
            whole = opened(data[:cut], codec)
        except MalformedEventError:
            continue
        assert TEXT.startswith(whole)


def test_a_block_of_snappy_that_is_cut_short_is_an_error() -> None:
    data = xerial(TEXT, 1000)
    for cut in range(17, len(data)):
        with suppress(MalformedEventError):
            assert TEXT.startswith(opened(data[:cut], "snappy"))
    empty = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 0)
    with pytest.raises(MalformedEventError, match="cut short"):
        opened(empty, "snappy")


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS[1:])
@given(data=st.data())
def test_damaged_frames_are_bytes_or_a_typed_error(codec: str, data: st.DataObject) -> None:
    whole = st.sampled_from([compress(TEXT, codec), compress(b"", codec), compress(b"ab", codec)])
    if codec == "snappy":
        whole |= st.just(xerial(TEXT, 1000))
    with suppress(MalformedEventError):
        assert len(opened(data.draw(damaged(whole)), codec, 10_000)) <= 10_000


def test_a_block_that_claims_more_than_it_holds_takes_no_memory() -> None:
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    with pytest.raises(MalformedEventError, match="more than max_event_bytes"):
        opened(b"\xff\xff\xff\xff\x0f" + bytes(10), "snappy")
    assert pool.bytes_allocated() == before
