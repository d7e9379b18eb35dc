from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.errors import SetupError
from fanout.kinesis.open_files import check_open_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kinesis.reading import Stream

SHARDS = 1000  # more than earlier tests of this process may have left open


@pytest.fixture
def limit(stream: Stream) -> Iterator[int]:
    """Let the process open 60 files more than it has open: each takes the lowest free number."""
    assert stream.server.endpoint_url  # its files are open
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(list(Path("/dev/fd").iterdir())) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.fault("The pool of connections is smaller than the number of shards")
@pytest.mark.parametrize("shards", [SHARDS])
async def test_a_stream_with_more_shards_than_files_may_be_open_says_so_when_it_opens(
    stream: Stream, limit: int
) -> None:
    with pytest.raises(SetupError) as caught:
        async with stream.open():
            pass
    assert str(caught.value) == (
        f"1000 open shards are read, each of which takes a connection, and this process "
        f"may open {limit} files, 64 of them for everything else; raise its limit to 1064 or "
        f"more before it starts (`ulimit -n 1064`, LimitNOFILE= of a systemd unit, nofile of a "
        f"container)"
    )
    assert stream.server.statistics().subscribe_calls == {}


async def test_closed_shards_do_not_count(stream: Stream, limit: int) -> None:
    shard = "shardId-000000000000"
    for _ in range(limit // 2):
        shard, sibling = stream.server.split_shard("orders", shard)
        shard = stream.server.merge_shards("orders", shard, sibling)
    assert await fanout.resolve_start(stream.source())


def test_the_limit_is_enough_for_all_shards_and_64_other_files(limit: int) -> None:
    check_open_files(limit - 64)
    with pytest.raises(SetupError):
        check_open_files(limit - 63)


def test_no_limit_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    check_open_files(10_000)
