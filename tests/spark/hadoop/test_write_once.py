from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import CheckpointError
from fanout.spark.hadoop.jvm import JAVA_ERRORS
from fanout.spark.hadoop.write_once import Creation
from tests.spark.hadoop.recording import (
    ABORTABLE,
    CONDITIONAL,
    Offer,
    RecordingFileSystem,
    compile_class,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Opened = Callable[[Offer], RecordingFileSystem]

pytestmark = pytest.mark.spark

S3A = Offer("s3a", (CONDITIONAL, ABORTABLE))
GCS = Offer("gs", ("hsync",), checks_at_close=True)
HDFS = Offer("hdfs", ("hsync",))
OLD_S3 = {scheme: Offer(scheme, (ABORTABLE,)) for scheme in ("s3a", "s3", "s3n")}
ALL = [S3A, GCS, HDFS, *OLD_S3.values(), Offer("abfs"), Offer("wasb")]


@pytest.fixture(scope="module")
def java_class(spark: SparkSession) -> Any:
    return compile_class(spark)


@pytest.fixture
def opened(spark: SparkSession, java_class: Any) -> Opened:
    return lambda offer: RecordingFileSystem(spark, java_class, offer)


@pytest.mark.parametrize(
    ("offer", "creation"),
    [
        (S3A, Creation.CONDITIONAL),
        (GCS, Creation.PUT),
        (OLD_S3["s3a"], Creation.PUT),
        (OLD_S3["s3"], Creation.PUT),
        (OLD_S3["s3n"], Creation.PUT),
        (HDFS, Creation.RENAME),
        (Offer("abfs"), Creation.RENAME),
        (Offer("wasb"), Creation.RENAME),
    ],
)
def test_each_file_system_creates_files_in_its_strongest_way(
    opened: Opened, offer: Offer, creation: Creation
) -> None:
    assert opened(offer).storage.writer.creation is creation


@pytest.mark.parametrize("offer", ALL)
def test_a_second_writer_is_refused_and_changes_nothing(opened: Opened, offer: Offer) -> None:
    files = opened(offer)
    files.storage.create("1.json", b"first")
    with pytest.raises(FileExistsError):
        files.storage.create("1.json", b"second")
    assert files.storage.read("1.json", limit=100) == b"first"
    assert files.names() == ["1.json"]


@pytest.mark.parametrize("offer", [S3A, GCS, HDFS])
def test_of_two_writers_at_once_the_slower_one_is_refused(opened: Opened, offer: Offer) -> None:
    files = opened(offer)
    files.overtake("1.json", b"faster")
    with pytest.raises(FileExistsError):
        files.storage.create("1.json", b"slower")
    assert files.storage.read("1.json", limit=100) == b"faster"
    assert files.names() == ["1.json"]


@pytest.mark.parametrize("scheme", OLD_S3)
def test_a_store_that_cannot_refuse_the_slower_writer_is_warned_of(
    opened: Opened, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fanout"):
        assert opened(OLD_S3[scheme]).storage.writer.creation is Creation.PUT
    assert f"{scheme}://lake/chk cannot create a file exclusively" in caplog.text


@pytest.mark.parametrize("offer", [S3A, GCS, HDFS])
def test_a_store_that_refuses_the_slower_writer_is_not_warned_of(
    opened: Opened, offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    opened(offer).storage.create("1.json", b"content")
    assert caplog.text == ""


def test_a_put_whose_answer_was_lost_is_known_as_ones_own(opened: Opened) -> None:
    files = opened(S3A)
    files.java.loseAnswer()
    files.storage.create("1.json", b"content")
    assert files.storage.read("1.json", limit=100) == b"content"


def test_a_put_that_failed_without_an_object_is_an_error(opened: Opened) -> None:
    files = opened(S3A)
    files.java.refusePuts()
    with pytest.raises(CheckpointError, match="the put was refused"):
        files.storage.create("1.json", b"content")
    assert files.names() == []


@pytest.mark.parametrize("offer", [S3A, *OLD_S3.values()])
def test_a_put_that_breaks_half_way_is_aborted(opened: Opened, offer: Offer) -> None:
    files = opened(offer)
    with pytest.raises(JAVA_ERRORS):
        files.write_half("1.json")
    assert files.names() == []
    assert files.calls()[1:] == ["abort"]


@pytest.mark.parametrize("offer", ALL)
def test_no_file_is_left_of_a_write_that_breaks_half_way(opened: Opened, offer: Offer) -> None:
    files = opened(offer)
    with pytest.raises(JAVA_ERRORS):
        files.write_half("1.json")
    assert files.names() == []


@pytest.mark.parametrize("offer", [S3A, GCS, *OLD_S3.values()])
def test_an_object_is_put_under_its_own_name(opened: Opened, offer: Offer) -> None:
    files = opened(offer)
    files.storage.create("1.json", b"content")
    assert "rename" not in files.calls()


@pytest.mark.parametrize("offer", [GCS, *OLD_S3.values()])
def test_a_put_never_replaces(opened: Opened, offer: Offer) -> None:
    files = opened(offer)
    files.storage.create("1.json", b"content")
    assert files.calls()[0] == "create"


def test_a_conditional_put_is_asked_for(opened: Opened) -> None:
    files = opened(S3A)
    files.storage.create("1.json", b"content")
    assert files.calls() == ["create unless taken", "close"]


def test_a_file_is_on_disk_before_it_has_its_name(opened: Opened) -> None:
    files = opened(HDFS)
    files.storage.create("1.json", b"content")
    assert files.calls() == ["create", "hsync of 7 bytes", "close", "rename"]


def test_a_file_system_without_hsync_is_not_asked_for_it(opened: Opened) -> None:
    files = opened(Offer("wasb"))
    files.storage.create("1.json", b"content")
    assert files.calls() == ["create", "close", "rename"]


def test_a_refused_rename_is_an_error_and_leaves_nothing(opened: Opened) -> None:
    files = opened(HDFS)
    files.java.refuseRenames()
    with pytest.raises(CheckpointError, match=r"1\.json: the rename was refused"):
        files.storage.create("1.json", b"content")
    assert files.names() == []
