"""fanout itself: it reads both ways, writes, and looks after its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.kinesis.consumers import open_consumers
from fanout.kinesis.options import KinesisOptions
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.clients.table import calls, calls_of
from tests.support.kinesis.reading import Stream, session
from tests.support.kinesis.writers import numbered, read, writing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> Iterator[Stream]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield Stream(server, shards=2)


async def test_fanout(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    options = KinesisOptions(
        stream="orders", consumer="etl", endpoint_url=stream.server.endpoint_url, session=session()
    )
    with calls(caplog) as seen:
        async with writing(stream) as writer:
            await writer.write(numbered(100, keys=10))
        pushed = await read(stream)
        assert await read(stream, mode="polling") == pushed
        assert sum(map(len, pushed.values())) == 100
        async with open_consumers(options) as consumers:
            registered = await consumers.describe_all()
            assert await consumers.deregister(registered) == {}
    assert seen == calls_of("fanout")
