"""Clusters that cannot carry landers: found when a query starts, in one sentence."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkConf

from fanout.errors import CheckpointError, OptionError, SetupError
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.hadoop.storage import open_storage
from fanout.spark.landers import checks as lander_checks
from fanout.spark.landers.checks import check_landers, check_shared
from fanout.spark.workers.worker_check import WorkerCheck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CHECK = WorkerCheck(work="landers", modules=(lander_checks.__name__,), extras="spark", tasks=2)


@pytest.fixture
def storage(checkpoint: str) -> LocalStorage:
    return LocalStorage(Path(checkpoint))


def check(spark: SparkSession, storage: Any, *, landers: int = 1, **options: Any) -> str:
    return check_landers(
        spark, storage, landers=landers, **{"modules": (), "extras": "kinesis,spark", **options}
    )


def settings(**values: str) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for name, value in values.items():
        conf.set(f"spark.{name.replace('_', '.')}", value)
    return conf


def test_a_session_that_fits_is_accepted_and_nothing_is_left(
    spark: SparkSession, storage: LocalStorage
) -> None:
    storage.create("probes/of-a-killed-driver", b"")
    assert check(spark, storage) == str(storage.root)
    assert storage.list("probes") == ()


def test_too_few_cores_are_refused(spark: SparkSession, storage: LocalStorage) -> None:
    with pytest.raises(OptionError) as refused:
        check(spark, storage, landers=2)
    assert str(refused.value) == (
        "landers=2 need 3 cores, as each holds one for as long as the query runs and batches need "
        "another; this session runs 2 tasks at once: create the session with more cores, such as "
        "local[3], or use 1 at most"
    )


def test_a_cluster_without_more_executors_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "master", "spark://127.0.0.1:1")
    monkeypatch.setattr(lander_checks, "_SETTLED", 0.2)
    advice = r"tasks at once: give it more executors or cores \(spark\.executor\.instances, .*max"
    with pytest.raises(OptionError, match=f"runs 2 {advice}"):
        lander_checks._check_cores(spark.sparkContext, 2)
    lander_checks._check_cores(spark.sparkContext, 1)


DYNAMIC = {"dynamicAllocation_enabled": "true"}


@pytest.mark.parametrize(
    ("master", "values", "tasks"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[*]", {}, os.cpu_count()),
        ("local[8, 4]", {"task_cpus": "2"}, 4),
        ("local-cluster[2,3,1024]", {}, 6),
        ("local-cluster[2,3,1024]", {"task_cpus": "2"}, 2),
        ("spark://here:7077", {}, float("inf")),
        ("spark://here:7077", {"cores_max": "6"}, 6),
        ("yarn", {}, 2),
        ("yarn", {"executor_instances": "4", "executor_cores": "3"}, 12),
        ("k8s://here", {**DYNAMIC, "executor_cores": "2"}, float("inf")),
        ("yarn", {**DYNAMIC, "executor_cores": "2", "dynamicAllocation_maxExecutors": "3"}, 6),
        ("spark://here:7077", {**DYNAMIC, "dynamicAllocation_maxExecutors": "3"}, float("inf")),
    ],
)
def test_the_most_tasks_by_the_settings(master: str, values: dict[str, str], tasks: float) -> None:
    assert lander_checks._promised(master, settings(**values)) == tasks


SPECULATION = {"speculation": "true", "speculation_task_duration_threshold": "1h"}
IDLE = {"python_worker_killOnIdleTimeout": "true", "python_worker_idleTimeoutSeconds": "60"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (SPECULATION, "spark.speculation.task.duration.threshold is set, by which Spark starts a"),
        (IDLE, "spark.python.worker.killOnIdleTimeout is set, by which Spark kills every lander"),
    ],
)
def test_settings_that_end_landers_are_refused(values: dict[str, str], says: str) -> None:
    with pytest.raises(SetupError, match=rf"^{says} .*unset it"):
        lander_checks._check_settings(settings(**values))
    for name, value in values.items():
        lander_checks._check_settings(settings(**{name: value}))


def test_threads_that_share_their_jobs_are_refused(
    spark: SparkSession, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.raises(SetupError, match=r"PYSPARK_PIN_THREAD is false, .*; unset it"):
        check(spark, storage)


def test_workers_that_lack_a_library_are_refused(
    spark: SparkSession, storage: LocalStorage
) -> None:
    with pytest.raises(
        SetupError, match="an import fails: ModuleNotFoundError: No module named 'a"
    ):
        check(spark, storage, modules=("absent_library",))
    assert storage.list("probes") == ()


def test_a_checkpoint_that_only_a_jvm_reaches_is_refused(
    spark: SparkSession, remote_checkpoint: str
) -> None:
    storage = open_storage(spark, remote_checkpoint)
    with pytest.raises(CheckpointError) as refused:
        check(spark, storage)
    storage.close()
    assert re.fullmatch(
        r"landers have no JVM and cannot write to viewfs://.*/chk/query/fanout; put the checkpoint "
        r"on object storage \(s3a://, gs://, abfss://\), or in a directory that all machines of "
        r"the cluster have mounted; or let the driver read, without landers",
        str(refused.value),
    )


def test_a_disk_of_another_machine_is_refused_and_left_alone(
    spark: SparkSession, storage: LocalStorage, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(CheckpointError, match=r"is not the driver's: .* have mounted$") as refused:
        check_shared(spark.sparkContext, storage, CHECK, str(elsewhere), {})
    assert str(refused.value).startswith(f"{elsewhere} on {os.uname().nodename} is not")
    assert not elsewhere.exists()
    assert storage.list("probes") == ()


def test_a_probe_that_the_driver_does_not_find_is_refused(
    spark: SparkSession, storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver sees an older state of the directory, as a snapshot mount shows it.
    other = LocalStorage(tmp_path / "snapshot")
    monkeypatch.setattr(other, "create", storage.create)
    with pytest.raises(CheckpointError, match=r"is not the driver's: what one writes the other"):
        check_shared(spark.sparkContext, other, CHECK, str(storage.root), {})


def test_the_error_of_a_worker_says_where_it_was(
    spark: SparkSession, storage: LocalStorage, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    host = os.uname().nodename
    with pytest.raises(CheckpointError, match=f"a lander on {host}: cannot read .*: Not a direct"):
        check_shared(spark.sparkContext, storage, CHECK, str(tmp_path / "file" / "below"), {})
    with pytest.raises(OptionError, match=f"a lander on {host}: storage_options can only be"):
        check_shared(spark.sparkContext, storage, CHECK, str(storage.root), {"region": "x"})
