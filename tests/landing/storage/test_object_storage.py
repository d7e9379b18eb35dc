"""Object storage on S3, as each server understands it."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fanout.errors import CheckpointError
from fanout.landing.storage import object_storage
from fanout.landing.storage.opening import check_conditional_create, open_object_storage
from fanout.landing.storage.storage import FileInfo
from fanout.testing.s3_clients import BUCKET
from tests.support.s3 import s3_client, s3_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.landing.storage.object_storage import ObjectStorage
    from fanout.landing.storage.storage import Storage


@pytest.fixture
def path() -> str:
    return f"{BUCKET}/landings/{uuid.uuid4().hex}"


@pytest.fixture
def storage(endpoint: str, path: str) -> Iterator[ObjectStorage]:
    with closing(open_object_storage(f"s3://{path}", s3_options(endpoint))) as storage:
        yield storage


def publish(storage: Storage, name: str, content: bytes) -> None:
    file = storage.scratch() / "part"
    file.write_bytes(content)
    storage.publish(file, name)
    assert not file.exists()


def test_what_was_created_can_be_read(storage: ObjectStorage) -> None:
    storage.create("entries/1.json", b"content")
    assert storage.read("entries/1.json", limit=7) == b"content"
    assert storage.size("entries/1.json") == 7


def test_an_empty_object_can_be_created(storage: ObjectStorage) -> None:
    storage.create("entries/1.json", b"")
    assert storage.read("entries/1.json", limit=7) == b""


@pytest.mark.parametrize("other", [b"second", b"fir", b"first!"])
def test_a_name_is_created_once(storage: ObjectStorage, other: bytes) -> None:
    storage.create("entries/1.json", b"first")
    with pytest.raises(FileExistsError):
        storage.create("entries/1.json", other)
    assert storage.read("entries/1.json", limit=100) == b"first"


def test_a_store_with_conditional_puts_passes_and_keeps_no_probe(storage: ObjectStorage) -> None:
    check_conditional_create(storage)
    assert storage.list("probes") == ()


def test_a_missing_object_reads_as_none(storage: ObjectStorage) -> None:
    assert storage.read("entries/1.json", limit=100) is None
    assert storage.size("entries/1.json") is None
    assert storage.list("entries") == ()


def test_an_object_above_the_limit_is_refused(storage: ObjectStorage) -> None:
    storage.create("entries/1.json", b"content")
    with pytest.raises(CheckpointError, match="larger than 6 bytes"):
        storage.read("entries/1.json", limit=6)


def test_objects_are_listed_by_name_with_sizes_and_times(storage: ObjectStorage) -> None:
    before = time.time_ns() // 1_000_000_000 * 1_000
    for name in ("2.json", "1.json", "deeper/3.json", "_tmp-4", ".5.crc"):
        storage._store.put(f"entries/{name}", b"x" * len(name))
    storage._store.put("entries-of-others/1", b"")
    listed = storage.list("entries")
    assert listed == (FileInfo("1.json", 6), FileInfo("2.json", 6))
    assert all(before <= info.written_at <= before + 60_000 for info in listed)


def test_other_things_in_the_bucket_are_not_listed(
    storage: ObjectStorage, endpoint: str, path: str
) -> None:
    storage.create("entries/1", b"content")
    prefix = path.removeprefix(f"{BUCKET}/")
    others = ("", "/", "/entries", "/entries/", "/entries/1/", "/entries/2/", "/entries2", "2")
    with closing(s3_client(endpoint)) as client:
        for other in others:
            client.put_object(Bucket=BUCKET, Key=f"{prefix}{other}", Body=b"")
    assert storage.list("entries") == (FileInfo("1", 7),)


def test_an_object_can_be_deleted_twice(storage: ObjectStorage) -> None:
    storage.create("entries/1.json", b"content")
    storage.delete("entries/1.json")
    storage.delete("entries/1.json")
    assert storage.list("entries") == ()


def test_a_segment_is_published_once(storage: ObjectStorage) -> None:
    publish(storage, "segments/1.parquet", b"first")
    with pytest.raises(FileExistsError):
        publish(storage, "segments/1.parquet", b"second")
    assert storage.list("segments") == (FileInfo("1.parquet", 5),)


def test_a_large_segment_is_published_once_in_parts(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "_MAX_SINGLE_PUT", 5 << 20)
    monkeypatch.setattr(object_storage, "_PART", 5 << 20)
    first = bytes(12 << 20)
    publish(storage, "segments/1.parquet", first)
    head = storage._store.head("segments/1.parquet")
    assert head["size"] == len(first)
    assert head["e_tag"].endswith('-3"')
    publish(storage, "segments/1.parquet", first)
    with pytest.raises(FileExistsError):
        publish(storage, "segments/1.parquet", first[:-1] + b"!")


# Not on S3Mock: it looks for the name before it writes, so that both of two writers may succeed.
@pytest.mark.long
def test_of_writers_at_once_each_name_has_one(moto: str, path: str) -> None:
    names = [f"entries/{number}" for number in range(40)]
    writers = [b"a", b"b", b"c", b"d"]

    def write(content: bytes) -> set[str]:
        won = set()
        with closing(open_object_storage(f"s3://{path}", s3_options(moto))) as storage:
            for name in names:
                try:
                    storage.create(name, content)
                except FileExistsError:
                    continue
                won.add(name)
        return won

    with ThreadPoolExecutor(4) as pool:
        won = dict(zip(writers, pool.map(write, writers), strict=True))
    assert sum(map(len, won.values())) == len(names)
    with closing(open_object_storage(f"s3://{path}", s3_options(moto))) as storage:
        for content, its in won.items():
            assert [name for name in its if storage.read(name, limit=1) != content] == []


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
def test_the_schemes_of_s3_are_one_place(
    storage: ObjectStorage, endpoint: str, path: str, scheme: str
) -> None:
    storage.create("entries/1", b"content")
    location = f"{scheme}://{path}"
    with closing(open_object_storage(f"{location}/", s3_options(endpoint))) as other:
        assert other.read("entries/1", limit=7) == b"content"
        assert other.location == location
        assert other.uri("entries/1") == f"{location}/entries/1"


@pytest.mark.parametrize("name", ["_hidden", "a/.hidden", "../outside", "/absolute", "a//b", ""])
def test_a_name_that_spark_would_not_read_is_refused(storage: ObjectStorage, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        storage.create(name, b"content")


def test_a_location_is_taken_literally(endpoint: str) -> None:
    location = f"s3://{BUCKET}//_chk a[1]{{b}}%20*?#é/query/"
    client = s3_client(endpoint)
    with closing(open_object_storage(location, s3_options(endpoint))) as storage, closing(client):
        storage.create("entries/1", b"content")
        assert storage.list("entries") == (FileInfo("1", 7),)
        keys = client.list_objects_v2(Bucket=BUCKET, Prefix="_chk")["Contents"]
        assert [key["Key"] for key in keys] == ["_chk a[1]{b}%20*?#é/query/entries/1"]
        assert storage.uri("entries/1").startswith(
            f"s3://{BUCKET}/_chk a\\[1\\]\\{{b\\}}%20\\*\\?#é"
        )


def test_a_whole_bucket_can_be_a_location(endpoint: str) -> None:
    with closing(open_object_storage(f"s3://{BUCKET}", s3_options(endpoint))) as storage:
        storage.create("entries-of-a-bucket/1", b"content")
        assert storage.list("entries-of-a-bucket") == (FileInfo("1", 7),)
        assert storage.uri("entries/1") == f"s3://{BUCKET}/entries/1"


def test_the_scratch_directory_is_removed_at_close(storage: ObjectStorage) -> None:
    scratch = storage.scratch()
    (scratch / "part").touch()
    storage.close()
    assert not scratch.exists()


def test_a_bucket_that_does_not_exist_is_one_clear_line(endpoint: str) -> None:
    with closing(open_object_storage("s3://nowhere/landing", s3_options(endpoint))) as storage:
        calls: dict[str, Callable[[], object]] = {
            "write s3://nowhere/landing/runs/1": lambda: storage.create("runs/1", b""),
            "read s3://nowhere/landing/runs/1": lambda: storage.read("runs/1", limit=1),
            "delete s3://nowhere/landing/runs/1": lambda: storage.delete("runs/1"),
            "list s3://nowhere/landing/runs": lambda: storage.list("runs"),
        }
        for doing, call in calls.items():
            with pytest.raises(CheckpointError) as caught:
                call()
            assert str(caught.value) == (
                f"cannot {doing}: the bucket 'nowhere' does not exist; create it, or correct the "
                "location"
            )
            assert caught.value.__cause__ is not None
