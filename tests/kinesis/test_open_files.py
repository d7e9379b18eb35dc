from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.errors import SetupError
from fanout.kinesis.open_files import check_open_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kinesis.reading import Stream

LIMIT = 120


@pytest.fixture
def few_files() -> Iterator[None]:
    """Let the process open no file above number 120."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("shards", [LIMIT])
async def test_a_stream_with_more_shards_than_files_may_be_open_says_so_when_it_opens(
    stream: Stream,
) -> None:
    with pytest.raises(SetupError) as caught:
        async with stream.open():
            pass
    assert str(caught.value) == (
        "the stream has 120 open shards, each of which takes a connection, and this process may "
        "open 120 files, 64 of them for everything else; raise its limit to 184 or more before it "
        "starts (`ulimit -n 184`, LimitNOFILE= of a systemd unit, nofile of a container)"
    )
    assert stream.server.statistics().subscribe_calls == {}


@pytest.mark.usefixtures("few_files")
async def test_closed_shards_do_not_count(stream: Stream) -> None:
    shard = "shardId-000000000000"
    for _ in range(LIMIT // 2):
        shard, sibling = stream.server.split_shard("orders", shard)
        shard = stream.server.merge_shards("orders", shard, sibling)
    assert await fanout.origin(stream.source())


@pytest.mark.usefixtures("few_files")
def test_the_limit_is_enough_for_all_shards_and_64_other_files() -> None:
    check_open_files(LIMIT - 64)
    with pytest.raises(SetupError):
        check_open_files(LIMIT - 63)


def test_no_limit_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    check_open_files(10_000)
