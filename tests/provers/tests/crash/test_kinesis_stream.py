from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.kinesis.deduplication import MAGIC
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from tests.provers.crash.sinks.destination import ROWS, Row
from tests.provers.crash.sinks.kinesis import KinesisStream

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[KinesisProcess]:
    with KinesisProcess(KinesisRules.fast()) as server:
        yield server


def with_id(number: int, data: bytes) -> bytes:
    return MAGIC + number.to_bytes(16, "big") + data


def test_of_the_records_with_one_id_the_first_is_read(server: KinesisProcess) -> None:
    stream = KinesisStream(server)
    assert list(stream.rows()) == []
    server.put_records(ROWS, [("a", with_id(1, b"one")), ("a", b"none"), ("a", with_id(1, b"!"))])
    assert list(stream.rows()) == [Row(b"a", b"one"), Row(b"a", b"none")]
    assert stream.repeated == 1
    server.put_records(ROWS, [("a", with_id(2, b"one")), ("a", b"none"), ("a", with_id(1, b"one"))])
    rows = list(stream.rows())
    assert rows == [Row(b"a", b"one"), Row(b"a", b"none")] * 2
    assert stream.repeated == 2
