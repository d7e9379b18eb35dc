from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import CheckpointError
from fanout.landing.storage.local_storage import LocalStorage
from fanout.landing.storage.storage import FileInfo, temporary_name
from fanout.spark.hadoop.storage import HadoopStorage, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.landing.storage.storage import Storage

pytestmark = pytest.mark.spark


@pytest.fixture(params=["local", "remote"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "query")
    return str(request.getfixturevalue("remote_checkpoint"))


@pytest.fixture
def storage(spark: SparkSession, location: str) -> Iterator[Storage]:
    with closing(open_storage(spark, location)) as storage:
        yield storage


def segment(storage: Storage, *values: int) -> Path:
    file = storage.scratch() / "part"
    pq.write_table(pa.table({"value": list(values)}), file)
    return file


def plant(tmp_path: Path, name: str) -> Path:
    """Leave a file beside the only one that is there."""
    (only,) = (path for path in tmp_path.rglob("1.json") if path.name[0] != ".")
    file = only.with_name(name)
    file.write_bytes(b"half")
    return file


def test_what_was_created_can_be_read(storage: Storage) -> None:
    storage.create("ledger/1.json", b"content")
    assert storage.read("ledger/1.json", limit=7) == b"content"


def test_an_empty_file_can_be_created(storage: Storage) -> None:
    storage.create("ledger/1.json", b"")
    assert storage.read("ledger/1.json", limit=7) == b""


def test_a_name_is_created_once(storage: Storage) -> None:
    storage.create("ledger/1.json", b"first")
    with pytest.raises(FileExistsError):
        storage.create("ledger/1.json", b"second")
    assert storage.read("ledger/1.json", limit=100) == b"first"


def test_a_refused_create_leaves_no_temporary(storage: Storage, tmp_path: Path) -> None:
    storage.create("ledger/1.json", b"first")
    with pytest.raises(FileExistsError):
        storage.create("ledger/1.json", b"second")
    assert not list(tmp_path.rglob("*_tmp-*"))


def test_a_missing_file_reads_as_none(storage: Storage) -> None:
    assert storage.read("ledger/1.json", limit=100) is None
    assert storage.size("ledger/1.json") is None


def test_a_file_above_the_limit_is_refused(storage: Storage) -> None:
    storage.create("ledger/1.json", b"content")
    with pytest.raises(CheckpointError, match="larger than 6 bytes"):
        storage.read("ledger/1.json", limit=6)


def test_size_is_in_bytes(storage: Storage) -> None:
    storage.create("ledger/1.json", b"content")
    assert storage.size("ledger/1.json") == 7


def test_files_are_listed_by_name_with_their_sizes(storage: Storage) -> None:
    storage.create("ledger/2.json", b"two")
    storage.create("ledger/1.json", b"one!")
    storage.create("ledger/deeper/3.json", b"")
    assert storage.list("ledger") == (FileInfo("1.json", 4), FileInfo("2.json", 3))


def test_a_missing_directory_lists_nothing(storage: Storage) -> None:
    assert storage.list("ledger") == ()


def test_a_walk_finds_files_in_every_directory(storage: Storage) -> None:
    for name in ("segments/date=2/b", "segments/date=1/a", "segments/c", "batches/d"):
        storage.create(name, b"")
    assert storage.walk("segments") == ("segments/c", "segments/date=1/a", "segments/date=2/b")
    assert storage.walk("nowhere") == ()


def test_a_temporary_is_never_listed(storage: Storage, tmp_path: Path) -> None:
    storage.create("ledger/1.json", b"content")
    plant(tmp_path, temporary_name())
    assert [info.name for info in storage.list("ledger")] == ["1.json"]


def test_a_sweep_removes_temporaries_and_nothing_else(storage: Storage, tmp_path: Path) -> None:
    storage.create("ledger/1.json", b"content")
    orphan = plant(tmp_path, temporary_name())
    stranger = plant(tmp_path, "2.json")

    storage.sweep()

    assert not orphan.exists()
    assert stranger.exists()
    assert storage.read("ledger/1.json", limit=100) == b"content"


def test_a_file_can_be_deleted_twice(storage: Storage) -> None:
    storage.create("ledger/1.json", b"content")
    storage.delete("ledger/1.json")
    storage.delete("ledger/1.json")
    assert storage.list("ledger") == ()


def test_spark_reads_a_published_segment(storage: Storage, spark: SparkSession) -> None:
    file = segment(storage, 1, 2, 3)
    storage.publish(file, "segments/1.parquet")
    rows = spark.read.schema("value long").parquet(storage.uri("segments/1.parquet")).collect()
    assert sorted(row.value for row in rows) == [1, 2, 3]


def test_publishing_moves_the_file(storage: Storage) -> None:
    file = segment(storage, 1)
    size = file.stat().st_size
    storage.publish(file, "segments/1.parquet")
    assert not file.exists()
    assert storage.list("segments") == (FileInfo("1.parquet", size),)


def test_a_segment_is_published_once(storage: Storage) -> None:
    storage.publish(segment(storage, 1), "segments/1.parquet")
    size = storage.size("segments/1.parquet")
    with pytest.raises(FileExistsError):
        storage.publish(segment(storage, *range(100)), "segments/1.parquet")
    assert storage.size("segments/1.parquet") == size


@pytest.mark.parametrize("name", ["_hidden", "a/.hidden", "../outside", "/absolute", "a//b", ""])
def test_a_name_that_spark_would_not_read_is_refused(storage: Storage, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        storage.create(name, b"content")


def test_a_location_with_special_characters_is_taken_literally(
    spark: SparkSession, location: str
) -> None:
    with closing(open_storage(spark, f"{location}/_chk a[1]{{b}}%20*?")) as storage:
        storage.publish(segment(storage, 1), "segments/1.parquet")
        frame = spark.read.schema("value long").parquet(storage.uri("segments/1.parquet"))
        assert frame.count() == 1


def test_a_location_can_be_opened_again(spark: SparkSession, location: str) -> None:
    with closing(open_storage(spark, location)) as storage:
        storage.create("ledger/1.json", b"content")
    with closing(open_storage(spark, location)) as storage:
        assert storage.read("ledger/1.json", limit=100) == b"content"


def test_everything_is_in_a_directory_of_its_own(
    storage: Storage, tmp_path: Path, location: str
) -> None:
    storage.create("ledger/1.json", b"content")
    directory = tmp_path / ("query" if location.startswith("/") else "mounted/query")
    assert [path.name for path in directory.iterdir()] == ["fanout"]


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_path_of_this_machine_is_local(spark: SparkSession, tmp_path: Path, prefix: str) -> None:
    storage = open_storage(spark, f"{prefix}{tmp_path}/a b%20")
    assert isinstance(storage, LocalStorage)
    assert storage.root == tmp_path / "a b%20" / "fanout"


def test_a_path_without_scheme_belongs_to_the_default_file_system(
    spark: SparkSession, remote_checkpoint: str
) -> None:
    spark.conf.set("fs.defaultFS", remote_checkpoint.removesuffix("/chk/query"))
    try:
        storage = open_storage(spark, "/chk/query")
    finally:
        spark.conf.unset("fs.defaultFS")
    assert isinstance(storage, HadoopStorage)
    assert storage.location == f"{remote_checkpoint}/fanout"


def test_the_remote_scratch_directory_is_removed_at_close(
    spark: SparkSession, remote_checkpoint: str
) -> None:
    storage = open_storage(spark, remote_checkpoint)
    scratch = storage.scratch()
    (scratch / "part").touch()
    storage.close()
    assert not scratch.exists()


def test_an_unknown_scheme_is_one_clear_line(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError, match='No FileSystem for scheme "nope"') as caught:
        open_storage(spark, "nope://bucket/query")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("location", "advice"),
    [
        (
            "s3a://lake/query",
            r"start Spark with --packages org\.apache\.hadoop:hadoop-aws:3\.\d+\.\d+",
        ),
        ("abfss://a@b/query", r"start Spark with --packages \S+:hadoop-azure:3\.\d+\.\d+"),
        ("s3://lake/query", "the location of Hadoop's S3 connector begins with s3a://"),
    ],
)
def test_a_file_system_whose_jars_are_missing_is_named_with_them(
    spark: SparkSession, location: str, advice: str
) -> None:
    with pytest.raises(CheckpointError, match=f"location '{location}': .*; {advice}$"):
        open_storage(spark, location)


def test_an_exception_that_pyspark_translates_is_one_clear_line_too(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError, match="cannot use the checkpoint location ''"):
        open_storage(spark, "")


def test_a_location_that_is_a_file_is_refused(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    file = tmp_path / ("query" if location.startswith("/") else "mounted/query")
    file.touch()
    with pytest.raises(CheckpointError, match=r"cannot use .*query"):
        open_storage(spark, location)


def test_a_password_in_a_location_is_not_shown(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_storage(spark, "nope://user:canary@bucket/query")
    assert "canary" not in str(caught.value)
