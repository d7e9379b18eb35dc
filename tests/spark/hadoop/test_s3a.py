from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import CheckpointError, SetupError
from fanout.landing.storage.storage import FileInfo
from fanout.spark.hadoop.jvm import JAVA_ERRORS, jvm
from fanout.spark.hadoop.write_once import Creation
from fanout.testing.s3_clients import BUCKET, s3a_settings
from fanout.testing.s3_server import serve_s3
from tests.jars.fetch import s3a_set
from tests.spark.hadoop.s3a import class_loader, s3a_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.spark.hadoop.storage import HadoopStorage

    Opened = Callable[..., AbstractContextManager[HadoopStorage]]

pytestmark = pytest.mark.spark

LOOK_AND_PUT = {"fs.s3a.create.conditional.enabled": "false"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serve_s3() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def loader(spark: SparkSession, jars: Callable[[str], list[Path]]) -> Any:
    try:
        name = s3a_set()
    except SetupError as error:  # for the oldest pyspark
        pytest.skip(str(error))
    return class_loader(spark, jars(name))


@pytest.fixture
def opened(spark: SparkSession, endpoint: str, loader: Any) -> Opened:
    location = f"s3a://{BUCKET}/{uuid.uuid4().hex}"

    def opened(**settings: str) -> AbstractContextManager[HadoopStorage]:
        return s3a_storage(spark, loader, location, s3a_settings(endpoint) | settings)

    return opened


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "creation"), [({}, Creation.CONDITIONAL), (LOOK_AND_PUT, Creation.PUT)]
)
def test_what_was_created_is_there_once(
    opened: Opened, settings: dict[str, str], creation: Creation
) -> None:
    with opened(**settings) as storage:
        assert storage.writer.creation is creation
        storage.create("ledger/1.json", b"first")
        with pytest.raises(FileExistsError):
            storage.create("ledger/1.json", b"second")
        assert storage.read("ledger/1.json", limit=100) == b"first"
        assert storage.list("ledger") == (FileInfo("1.json", 5),)


@pytest.mark.long
@pytest.mark.parametrize("number", range(5))
def test_of_writers_at_once_one_wins_and_the_others_know_it(opened: Opened, number: int) -> None:
    name, contents = f"ledger/{number}.json", [b"a", b"b", b"c", b"d"]

    def create(content: bytes) -> bool:
        try:
            storage.create(name, content)
        except FileExistsError:
            return False
        return True

    with opened() as storage, ThreadPoolExecutor(4) as pool:
        won = list(pool.map(create, contents))
        assert won.count(True) == 1
        assert storage.read(name, limit=1) == contents[won.index(True)]


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, LOOK_AND_PUT])
def test_a_write_that_breaks_half_way_leaves_no_object(
    spark: SparkSession, opened: Opened, settings: dict[str, str]
) -> None:
    java: Any = jvm(spark)
    with opened(**settings) as storage:
        broken = java.java.io.FileInputStream("/dev/null")
        broken.close()
        half = java.java.io.SequenceInputStream(java.java.io.ByteArrayInputStream(b"half"), broken)
        with pytest.raises(JAVA_ERRORS):
            storage.writer.write(storage._path("ledger/1.json"), half)
        assert storage.list("ledger") == ()


def test_a_segment_is_published_once(opened: Opened) -> None:
    with opened() as storage:
        file = storage.scratch() / "part"
        file.write_bytes(b"first")
        storage.publish(file, "segments/1.parquet")
        file.write_bytes(b"second")
        with pytest.raises(FileExistsError):
            storage.publish(file, "segments/1.parquet")
        assert storage.read("segments/1.parquet", limit=100) == b"first"
        assert storage.size("segments/1.parquet") == 5


def test_a_missing_bucket_is_one_clear_line(
    spark: SparkSession, endpoint: str, loader: Any
) -> None:
    location = "s3a://nowhere/checkpoint"
    with (
        pytest.raises(CheckpointError) as caught,
        s3a_storage(spark, loader, location, s3a_settings(endpoint)),
    ):
        pass
    assert str(caught.value).startswith(f"cannot use {location}: ")
    assert "\n" not in str(caught.value)
