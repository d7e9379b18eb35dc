"""Check that a Spark cluster can carry landers, before anything is started."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from fanout.core.remote_error import ErrorWire
from fanout.errors import CheckpointError, FanOutError, OptionError, SetupError
from fanout.landing.storage.local_storage import LocalFiles
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import open_files, open_storage
from fanout.spark.workers.worker_check import WorkerCheck, ask_workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from fanout.landing.storage.storage import Storage

_PROBES: Final = "probes"
_PROBE_BYTES: Final = 100

# Executors may still register when a query starts: seconds until their number counts as final, and
# the same where the settings promise more of them.
_SETTLED: Final = 5.0
_LONGEST: Final = 60.0
_LOOK: Final = 0.1

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def check_landers(
    spark: SparkSession,
    storage: Storage,
    *,
    landers: int,
    modules: tuple[str, ...],
    extras: str,
    storage_options: Mapping[str, str] | None = None,
) -> str:
    """Check that landers can run on the executors of a session, and write its checkpoint there.

    Probes are written to the driver's own part of the checkpoint, and deleted.

    Returns:
        The location of `storage` for landers, which have no JVM.

    Raises:
        OptionError: There are fewer cores than the landers and one more; or an option of the
            storage is wrong.
        SetupError: A setting of Spark would end landers or run them twice; Python workers cannot
            run them; or they lack a library or credentials for the storage.
        CheckpointError: Executors cannot write to the checkpoint, or not to the driver's.
    """
    location = location_without_jvm(storage)
    context = spark.sparkContext
    _check_settings(context.getConf())
    _check_cores(context, landers)
    executors: Any = context._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001 - pyspark's only door to the JVM
    tasks = max(landers, len(executors))
    check_shared(
        context,
        storage,
        WorkerCheck(
            work="landers",
            modules=(*modules, __name__),
            extras=extras,
            # Spark spreads tasks that begin at once over all executors that have registered.
            tasks=min(tasks, _running_tasks(context) or tasks),
        ),
        location,
        storage_options or {},
    )
    return location


def location_without_jvm(storage: Storage) -> str:
    """Return the location of a checkpoint as `landing.storage.opening.open_storage` takes it.

    Raises:
        CheckpointError: It can only be reached through a JVM.
    """
    if isinstance(storage, LocalFiles):
        return str(Path(storage.root).absolute())
    if is_object_location(storage.location):
        return storage.location
    raise CheckpointError(
        f"landers have no JVM and cannot write to {storage.location}; put the checkpoint on object "
        f"storage (s3a://, gs://, abfss://), or in a directory that all machines of the cluster "
        f"have mounted; or let the driver read, without landers"
    )


def _check_settings(conf: SparkConf) -> None:
    """Check the settings of Spark that would end a lander or start its twin."""
    threshold = "spark.speculation.task.duration.threshold"
    if _is_true(conf, "spark.speculation") and conf.get(threshold) is not None:
        raise SetupError(
            f"{threshold} is set, by which Spark starts a second copy of every lander; unset it, "
            f"or spark.speculation"
        )
    idle = "spark.python.worker.idleTimeoutSeconds"
    if _is_true(conf, "spark.python.worker.killOnIdleTimeout") and conf.get(idle, "0") != "0":
        raise SetupError(
            f"spark.python.worker.killOnIdleTimeout is set, by which Spark kills every lander "
            f"after {idle}={conf.get(idle)}; unset it"
        )
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        raise SetupError(
            "PYSPARK_PIN_THREAD is false, so that the jobs of landers could not be told from yours "
            "when they are cancelled; unset it"
        )


def _check_cores(context: SparkContext, landers: int) -> None:
    """Check that there is a core for each lander, and one for the batches."""
    conf = context.getConf()
    needed = landers + 1
    promised = _promised(str(context.master), conf)
    if _is_true(conf, "spark.dynamicAllocation.enabled") and promised >= needed:
        return  # Spark asks for executors as landers wait for them
    if promised < needed:
        raise _too_few(context, landers, int(promised))
    patience = _SETTLED if promised == math.inf else _LONGEST
    began, tasks = time.monotonic(), _running_tasks(context)
    while tasks < needed:
        if time.monotonic() - began >= patience:
            raise _too_few(context, landers, tasks)
        time.sleep(_LOOK)  # Spark says nothing when an executor has registered
        if (now := _running_tasks(context)) != tasks:
            began, tasks = time.monotonic(), now


def _promised(master: str, conf: SparkConf) -> float:
    """Return how many tasks run at once by the settings at most; infinity where they do not say."""
    cpus = int(conf.get("spark.task.cpus", "1"))
    if found := _LOCAL.fullmatch(master):
        cores = (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)
        return cores // cpus
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * (int(found[2]) // cpus)
    shared = not master.startswith("spark://")  # there an executor has all cores of a worker
    cores_each = conf.get("spark.executor.cores", "1" if shared else None)
    if _is_true(conf, "spark.dynamicAllocation.enabled"):
        executors = conf.get("spark.dynamicAllocation.maxExecutors")
    else:
        executors = conf.get("spark.executor.instances", "2" if shared else None)
    if cores_each is None or executors is None or int(executors) == 2**31 - 1:
        most = math.inf
    else:
        most = int(executors) * (int(cores_each) // cpus)
    cores_max = conf.get("spark.cores.max")
    return most if cores_max is None or shared else min(most, int(cores_max) // cpus)


def _running_tasks(context: SparkContext) -> int:
    """Return how many tasks the executors that have registered run at once."""
    scala: Any = context._jsc.sc()  # noqa: SLF001 - pyspark's only door to the JVM
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def _too_few(context: SparkContext, landers: int, tasks: int) -> OptionError:
    needed = landers + 1
    if str(context.master).startswith("local"):
        remedy = f"create the session with more cores, such as local[{needed}]"
    elif _is_true(context.getConf(), "spark.dynamicAllocation.enabled"):
        remedy = "raise spark.dynamicAllocation.maxExecutors"
    else:
        remedy = "give it more executors or cores (spark.executor.instances, spark.executor.cores"
        remedy += ", spark.cores.max)"
    fewer = f", or use {tasks - 1} at most" if tasks > 1 else ""
    return OptionError(
        f"landers={landers} need {needed} cores, as each holds one for as long as the query runs "
        f"and batches need another; this session runs {tasks} tasks at once: {remedy}{fewer}"
    )


def check_shared(
    context: SparkContext,
    storage: Storage,
    check: WorkerCheck,
    location: str,
    options: Mapping[str, str],
) -> None:
    """Let executors read what the driver has written to the checkpoint, and the reverse.

    They open `location` with `options` of its storage. Errors are those of `check_landers`.
    """
    for left in storage.list(_PROBES):
        storage.delete(f"{_PROBES}/{left.name}")
    ours = f"{_PROBES}/{uuid4().hex}"
    storage.create(ours, b"driver")
    probe = replace(
        check,
        function=(__name__, answer_probe.__name__),
        arguments=(location, dict(options), ours),
    )
    try:
        for host, name, failure in ask_workers(context, probe):
            if failure is not None:
                raise ErrorWire.from_json(failure).error(f"a lander on {host}: ")
            if name is None or storage.read(name, limit=_PROBE_BYTES) is None:
                raise CheckpointError(
                    f"{location} on {host} is not the driver's: what one writes the other does not "
                    f"find; put the checkpoint on object storage (s3a://, gs://, abfss://), or in "
                    f"a directory that all machines of the cluster have mounted"
                )
    finally:
        for left in storage.list(_PROBES):
            storage.delete(f"{_PROBES}/{left.name}")


def answer_probe(
    location: str, options: dict[str, str], probe: str
) -> tuple[str, str | None, str | None]:
    """Return this worker's host, the probe that it has written beside the driver's, and an error.

    Nothing is written where the driver's is not found, which may be on another machine's disk: then
    there is no name.
    """
    host = socket.gethostname()
    try:
        if open_files(location, options).read(probe, limit=_PROBE_BYTES) is None:
            return host, None, None
        name = f"{_PROBES}/{uuid4().hex}"
        storage = open_storage(location, options)
        try:
            storage.create(name, host.encode()[:_PROBE_BYTES])
        finally:
            storage.close()
    except FanOutError as error:
        return host, None, ErrorWire.of(error).to_json()
    return host, name, None


def _is_true(conf: SparkConf, name: str) -> bool:
    return str(conf.get(name, "false")).lower() == "true"
