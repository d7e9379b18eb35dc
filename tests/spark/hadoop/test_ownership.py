from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fanout.errors import CheckpointError
from fanout.landing.claims import PosixLock, claim, claim_stopped, is_claimed
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.storage import open_storage
from fanout.testing.spark.class_archive import java_options
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.landing.storage.storage import Storage

pytestmark = pytest.mark.spark

HOLDING_DRIVER = """
import sys
from pyspark.sql import SparkSession
from fanout.landing.claims import claim
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.storage import open_storage

spark = (
    SparkSession.builder.master("local[1]").appName("holder").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
)
with claim(open_storage(spark, sys.argv[1]), JvmProcess(spark)):
    print("claimed", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def local(spark: SparkSession, tmp_path: Path) -> Iterator[Storage]:
    with closing(open_storage(spark, str(tmp_path / "query"))) as storage:
        yield storage


@pytest.fixture
def remote(spark: SparkSession, remote_checkpoint: str) -> Iterator[Storage]:
    with closing(open_storage(spark, remote_checkpoint)) as storage:
        yield storage


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest) -> Storage:
    storage: Storage = request.getfixturevalue(request.param)
    return storage


@pytest.fixture
def holding_driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another driver, with a JVM of its own, that owns the checkpoint."""
    environment = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    with subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-c", HOLDING_DRIVER, str(tmp_path / "query"), java_options()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "claimed\n"
        yield driver
        driver.kill()


def test_a_claim_holds_while_its_block_runs(storage: Storage, spark: SparkSession) -> None:
    with claim(storage, JvmProcess(spark)) as ownership:
        ownership.check()


def test_a_checkpoint_can_be_claimed_again_after_release(
    storage: Storage, spark: SparkSession
) -> None:
    with claim(storage, JvmProcess(spark)) as first:
        pass
    with claim(storage, JvmProcess(spark), wait=0) as second:
        second.check()
    assert second.run > first.run


def test_a_claim_is_released_when_its_block_fails(local: Storage, spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), claim(local, JvmProcess(spark)):
        raise ZeroDivisionError
    with claim(local, JvmProcess(spark), wait=0) as ownership:
        ownership.check()


def test_a_second_query_in_one_jvm_is_refused_without_a_wait(
    local: Storage, spark: SparkSession
) -> None:
    with claim(local, JvmProcess(spark)) as first:
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=r"in use by another run of this process"):
            claim(local, JvmProcess(spark), wait=1.5 * PATIENCE).__enter__()
        assert time.monotonic() - began < PATIENCE
        first.check()


def test_a_refused_claim_in_one_jvm_does_not_free_the_lock_for_another_process(
    local: Storage, spark: SparkSession, tmp_path: Path
) -> None:
    probe = (
        "import fcntl, sys\n"
        "try: fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: sys.exit(3)\n"
    )
    with claim(local, JvmProcess(spark)):
        with pytest.raises(CheckpointError):
            claim(local, JvmProcess(spark), wait=0).__enter__()
        done = subprocess.run(  # noqa: S603 - our own code
            [sys.executable, "-c", probe, tmp_path / "query" / "fanout" / "owner.lock"], check=False
        )
    assert done.returncode == 3


def test_a_path_to_the_same_checkpoint_by_a_link_is_the_same_checkpoint(
    local: Storage, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "query")
    alias = open_storage(spark, str(tmp_path / "alias"))
    with claim(local, JvmProcess(spark)), pytest.raises(CheckpointError, match="in use"):
        claim(alias, JvmProcess(spark), wait=0).__enter__()


def test_two_checkpoints_can_be_owned_at_once(
    local: Storage, spark: SparkSession, tmp_path: Path
) -> None:
    other = open_storage(spark, str(tmp_path / "other"))
    with claim(local, JvmProcess(spark)) as first, claim(other, JvmProcess(spark)) as second:
        first.check()
        second.check()


def test_a_newer_run_fences_the_older_on_a_remote_checkpoint(
    remote: Storage, spark: SparkSession
) -> None:
    with claim(remote, JvmProcess(spark)) as older, claim(remote, JvmProcess(spark)) as newer:
        newer.check()
        with pytest.raises(CheckpointError, match="taken over by a newer run"):
            older.check()


def test_a_fenced_run_stays_fenced_after_the_newer_one_ended(
    remote: Storage, spark: SparkSession
) -> None:
    with claim(remote, JvmProcess(spark)) as older:
        with claim(remote, JvmProcess(spark)):
            pass
        with pytest.raises(CheckpointError, match="taken over"):
            older.check()


def test_a_fenced_run_stays_fenced_after_its_own_number_was_pruned(
    remote: Storage, spark: SparkSession
) -> None:
    with claim(remote, JvmProcess(spark)) as older:
        for _ in range(8):
            with claim(remote, JvmProcess(spark)):
                pass
        with pytest.raises(CheckpointError, match="taken over"):
            older.check()


def test_a_run_whose_number_another_run_took_is_fenced(
    remote: Storage, spark: SparkSession
) -> None:
    # What a store without exclusive creation does to two runs that start at once.
    with claim(remote, JvmProcess(spark)) as loser:
        remote.delete(f"runs/{loser.run}")
        with claim(remote, JvmProcess(spark)) as winner:
            assert winner.run == loser.run
            winner.check()
            with pytest.raises(CheckpointError, match="taken over"):
                loser.check()


def test_a_checkpoint_that_was_removed_under_a_run_is_lost(
    local: Storage, spark: SparkSession, tmp_path: Path
) -> None:
    with claim(local, JvmProcess(spark)) as ownership:
        shutil.rmtree(tmp_path / "query")
        with pytest.raises(CheckpointError, match="was removed"):
            ownership.check()


@pytest.mark.long
def test_only_the_newest_runs_are_remembered(storage: Storage, spark: SparkSession) -> None:
    for _ in range(12):
        with claim(storage, JvmProcess(spark)):
            pass
    assert sorted(int(info.name) for info in storage.list("runs")) == [8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"x" * 4000, b'{"version":1,"pid":"no"}', b'{"token":"\xff"}']
)
def test_a_damaged_run_file_is_no_obstacle(
    remote: Storage, spark: SparkSession, content: bytes
) -> None:
    with claim(remote, JvmProcess(spark)) as older:
        remote.create(f"runs/{older.run + 1}", content)
        with pytest.raises(CheckpointError, match="newer run: another run"):
            older.check()
    with claim(remote, JvmProcess(spark)) as ownership:
        assert ownership.run == older.run + 2


@pytest.mark.long
def test_a_driver_waits_for_the_jvm_of_a_killed_one(
    holding_driver: subprocess.Popen[str], local: Storage, spark: SparkSession
) -> None:
    with pytest.raises(CheckpointError, match=r"'holder \(local-\d+\)', process \d+ .* running"):
        claim(local, JvmProcess(spark), wait=0.2).__enter__()

    os.kill(holding_driver.pid, signal.SIGKILL)
    with claim(local, JvmProcess(spark), wait=30) as ownership:
        ownership.check()


def test_a_process_without_spark_owns_what_no_query_runs_on(
    local: Storage, spark: SparkSession
) -> None:
    assert isinstance(local, LocalStorage)
    assert not is_claimed(local)
    assert local.size("owner.lock") is None, "who looks leaves nothing"
    with claim(local, JvmProcess(spark)):
        assert is_claimed(local)
        with pytest.raises(CheckpointError, match=r"application .* still running; stop it"):
            claim_stopped(local, "tool").__enter__()
    assert not is_claimed(local)
    with claim_stopped(local, "tool") as ownership:
        ownership.check()
        with pytest.raises(
            CheckpointError, match=f"in use after .*'tool', process {os.getpid()} .* is still"
        ):
            claim(local, JvmProcess(spark), wait=0.2).__enter__()
        ownership.check()
    with pytest.raises(CheckpointError, match="unlocked"):
        ownership.check()
    with claim(local, JvmProcess(spark)) as later:
        assert later.run == ownership.run + 1


def test_a_checkpoint_that_may_not_be_written_is_not_taken_for_a_running_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="cannot lock"):
        PosixLock.try_acquire(tmp_path / "missing" / "owner.lock")
    with pytest.raises(CheckpointError, match="cannot lock"):
        PosixLock.try_acquire(tmp_path)
