"""Python workers that cannot run a sink: found when its query starts, and not tried again."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from fanout.errors import SetupError
from fanout.kafka import Cluster, Security
from fanout.spark import KafkaSink, ShuffleSink
from fanout.spark.workers import worker_check
from fanout.spark.workers.worker_check import check_workers
from tests.spark.sinks.kafka.harness import Output, run
from tests.support.kafka.topics import PLAINTEXT
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

    Start = Callable[..., FanOutQuery]
    Workers = Callable[..., str]

pytestmark = pytest.mark.spark

# No broker is there: workers are checked first.
NOWHERE = Cluster("127.0.0.1:1", security=PLAINTEXT)

LIBRARIES = ("aiokafka", "cramjam", "msgspec", "numpy", "pandas", "pyarrow", "tenacity")

_HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""
_OTHER_VERSION = """
import sys
from collections import namedtuple
Version = namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version(3, 99, 1, "final", 0)
"""


@pytest.fixture
def workers(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Let Spark's workers run another Python: this one, with code that it runs first."""

    def use(code: str = "", *, fanout: str | None = None) -> str:
        first = tmp_path / "first"
        first.mkdir()
        (first / "sitecustomize.py").write_text(code)
        if fanout is not None:
            info = first / f"fanout_streams-{fanout}.dist-info"
            info.mkdir()
            lines = ("Metadata-Version: 2.1", "Name: fanout-streams", f"Version: {fanout}", "")
            (info / "METADATA").write_text("\n".join(lines))
        python = tmp_path / "other-python"
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH={first}:"$PYTHONPATH" exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
        return str(python)

    return use


def without(*modules: str) -> str:
    return _HIDE.format(modules=set(modules))


def refusal(start: Start, sink: KafkaSink | ShuffleSink) -> str:
    """Return what the start of a query says."""
    with pytest.raises(SetupError) as refused:
        start(ManualSource(), sink)
    return str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize(
    "missing", ["fanout", *(pytest.param(one, marks=pytest.mark.prove) for one in LIBRARIES)]
)
def test_a_python_without_a_library_is_named_with_the_setting(
    start: Start, workers: Workers, missing: str
) -> None:
    python = workers(without(missing))
    compressed = {"compression.type": "zstd"}
    says = refusal(start, KafkaSink(cluster=NOWHERE, topic="out", producer_options=compressed))
    assert says.startswith(f"Spark's Python workers run {python} (Python {sys.version_info[0]}.")
    assert f"where an import fails: ModuleNotFoundError: No module named '{missing}" in says
    assert f"set PYSPARK_PYTHON={sys.executable} before the session is created" in says


@pytest.mark.prove
def test_a_shuffle_needs_the_same(start: Start, workers: Workers) -> None:
    workers(without("fanout"))
    says = refusal(start, ShuffleSink(cluster=NOWHERE, topic="out"))
    assert "No module named 'fanout'" in says


@pytest.mark.long
def test_another_version_of_python_is_refused(start: Start, workers: Workers) -> None:
    python = workers(_OTHER_VERSION)
    says = refusal(start, KafkaSink(cluster=NOWHERE, topic="out"))
    ours = ".".join(map(str, sys.version_info[:2]))
    assert f"run {python}, which is Python 3.99, and the driver has Python {ours}; set" in says


def test_another_version_of_fanout_is_refused(start: Start, workers: Workers) -> None:
    workers(fanout="0.0.9")
    says = refusal(start, KafkaSink(cluster=NOWHERE, topic="out"))
    assert "with fanout 0.0.9, and the driver has " in says


def test_a_python_that_does_not_exist_is_refused(
    start: Start, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    says = refusal(start, KafkaSink(cluster=NOWHERE, topic="out"))
    assert "run /nowhere/python3, which cannot be started: No such file or directory; set" in says


@pytest.mark.prove
def test_a_python_that_fails_is_refused(start: Start, workers: Workers) -> None:
    workers("import sys; sys.exit('no good')")
    says = refusal(start, KafkaSink(cluster=NOWHERE, topic="out"))
    assert "which fails: SystemExit: no good; set PYSPARK_PYTHON" in says


@pytest.mark.long
def test_the_library_of_a_codec_is_needed_where_it_is_used(
    start: Start, spark: SparkSession, workers: Workers
) -> None:
    workers(without("cramjam"))
    check_workers(spark, KafkaSink(cluster=NOWHERE, topic="out"))
    compressed = KafkaSink(
        cluster=NOWHERE, topic="out", producer_options={"compression.type": "zstd"}
    )
    assert "No module named 'cramjam'" in refusal(start, compressed)


@pytest.mark.long
def test_a_session_of_this_machine_gets_the_python_of_the_driver(
    spark: SparkSession, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers(without("fanout"))
    monkeypatch.delenv("PYSPARK_PYTHON")
    check_workers(spark, KafkaSink(cluster=NOWHERE, topic="out"))
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.prove
def test_a_python_of_the_users_choice_that_works_is_left_alone(
    spark: SparkSession, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = workers()
    monkeypatch.delenv("PYSPARK_PYTHON")
    check_workers(spark, KafkaSink(cluster=NOWHERE, topic="out"))
    assert spark.sparkContext.pythonExec == python


@pytest.mark.long
def test_on_a_cluster_the_message_says_what_to_install_on_the_nodes(
    start: Start, spark: SparkSession, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = workers(without("fanout"))
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "master", "yarn")
    says = refusal(start, KafkaSink(cluster=NOWHERE, topic="out"))
    assert "install 'fanout-streams[kafka,spark]==" in says
    assert "--archives" in says
    assert spark.sparkContext.pythonExec == python


@pytest.mark.long
def test_a_session_is_checked_once(spark: SparkSession, workers: Workers) -> None:
    def jobs() -> int:
        # Spark counts them up.
        spark.range(1).collect()
        return max(spark.sparkContext.statusTracker().getJobIdsForGroup(None))

    sink = KafkaSink(cluster=NOWHERE, topic="out")
    workers()
    before = jobs()
    check_workers(spark, sink)
    assert jobs() == before + 2
    check_workers(spark, sink)
    assert jobs() == before + 3


@contextmanager
def no_free_core(spark: SparkSession, release: Path) -> Iterator[None]:
    """Let another job hold all cores during the block."""
    context = spark.sparkContext
    cores = context.defaultParallelism

    def hold(_: int) -> None:
        while not release.exists():
            time.sleep(0.05)

    def active() -> int:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(id_) for id_ in tracker.getActiveStageIds()]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(context.parallelize(range(cores), cores).foreach, hold)
        try:
            while active() < cores:
                assert not job.done()
                time.sleep(0.05)
            yield
        finally:
            release.touch()
            job.exception()


@pytest.mark.long
def test_a_cluster_without_a_free_executor_is_named_within_a_bound(
    spark: SparkSession,
    tmp_path: Path,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(worker_check, "_LONGEST", 0.5)
    caplog.set_level("INFO", "fanout")
    with no_free_core(spark, tmp_path / "release"):
        jobs = set(spark.sparkContext.statusTracker().getActiveJobsIds())
        python = workers()
        with pytest.raises(SetupError, match=r"no executor has run .* within 0\.5 s; see that the"):
            check_workers(spark, KafkaSink(cluster=NOWHERE, topic="out"))
        # Spark's tracker learns of the end of a job a little later.
        eventually(
            lambda: set(spark.sparkContext.statusTracker().getActiveJobsIds()) == jobs,
            "the end of the check's job",
        )
    assert f"checking that Spark's Python workers can run the sink: {python}" in caplog.text
    assert not spark.sparkContext.getJobTags()


@pytest.mark.long
def test_a_job_that_is_cancelled_is_no_fault_of_the_python(
    spark: SparkSession, tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    with no_free_core(spark, tmp_path / "release"), ThreadPoolExecutor(1) as pool:
        python = workers()
        monkeypatch.delenv("PYSPARK_PYTHON")
        check = pool.submit(check_workers, spark, KafkaSink(cluster=NOWHERE, topic="out"))
        while len(context.statusTracker().getActiveJobsIds()) < 2:
            assert not check.done()
            time.sleep(0.05)
        context.cancelAllJobs()
        says = str(check.exception())
    assert says.startswith("the job that checks Spark's Python workers has failed: SparkExc")
    assert "PYSPARK_PYTHON" not in says
    assert context.pythonExec == python


def test_a_lost_executor_is_no_fault_of_the_python() -> None:
    lost = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times"
        ": ExecutorLostFailure (executor 1 exited caused by one of the running tasks)\n"
        "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)\n"
    )
    assert worker_check._why_not_started(lost) is None
    died = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert worker_check._why_not_started(died) == (
        "which fails: Python worker exited unexpectedly (crashed)"
    )


@pytest.mark.long
def test_a_handler_of_the_users_own_is_checked_before_it_writes(
    spark: SparkSession, workers: Workers, tmp_path: Path
) -> None:
    workers(without("fanout"))
    sink = KafkaSink(cluster=NOWHERE, topic="out")
    with run(spark, tmp_path / "query") as here, pytest.raises(SetupError, match="set PYSPARK"):
        here.write(sink, spark.sql("select 'one' value"), 0)


def test_a_task_that_lacks_a_module_is_not_tried_again(
    kafka_broker: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    attempts = tmp_path / "attempts"

    def security() -> Security:
        if TaskContext.get() is not None:
            with attempts.open("a") as file:
                file.write("attempt\n")
            import vault_of_the_company  # type: ignore[import-not-found]  # noqa: F401, PLC0415
        return Security(protocol="PLAINTEXT")

    output = Output(kafka_broker)
    with (
        run(spark, tmp_path / "query") as here,
        pytest.raises(SetupError, match="No module named 'vault_of_the_company'; install it in"),
    ):
        here.write(output.sink(security), spark.sql("select 'one' value").coalesce(1), 0)
    assert attempts.read_text().count("attempt") <= 2  # the tasks of one attempt
    assert output.values() == []
