"""The stream of a query whose records are read by landers on Spark's executors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, final

from pyspark import cloudpickle

from fanout.core.cancellation import in_thread
from fanout.core.error_text import first_error, text_of
from fanout.core.option_checks import at_least_one, whole
from fanout.errors import (
    LanderCancelledError,
    OptionError,
    SparkLostError,
    StreamStateError,
)
from fanout.landers.assignment import Assignment
from fanout.landers.control_handshake import (
    SECRET_BYTES,
    driver_tls,
    new_certificate,
    spark_encrypts,
)
from fanout.landers.control_server import ControlServer
from fanout.landers.reading import open_for_landers
from fanout.landers.task import LanderTask
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.landers.checks import check_landers
from fanout.spark.landers.jobs import LanderJobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pyspark.sql import SparkSession

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.opening import Opened
    from fanout.core.source import Source
    from fanout.core.statistics import OnResubscribe, Statistics
    from fanout.landers.channel import Channel
    from fanout.landers.reading import LandersReading
    from fanout.landing.log.reading import BatchLimits, LandingPlace
    from fanout.landing.segments.segment_filler import NoRecords, Stopped
    from fanout.landing.segments.segments import LandedBatch
    from fanout.landing.storage.storage import Storage
    from fanout.spark.workers.loop_thread import LoopThread

_MAX_PORT: Final = 65_535
_END_SECONDS: Final = 10.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OnExecutors:
    """Read on Spark's executors: each lander is a task that never ends, and holds a core.

    Args:
        landers: How many landers read. Spark needs more cores than that.
        control_port: The port of the driver to which landers connect; 0 for any that is free.
        storage_options: Settings of the object store by obstore's names, for a checkpoint there;
            see `fanout.land`. Executors find credentials as the service's SDK finds them.

    Raises:
        OptionError: If a number is out of range.
    """

    landers: int
    control_port: int = 0
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        at_least_one("landers", self.landers)
        if not 0 <= whole("control_port", self.control_port) <= _MAX_PORT:
            raise OptionError(f"control_port={self.control_port} must be a port, or 0 for any")


@final
class LandersStream:
    """Coordinate landers in the loop thread, and run them as Spark jobs, until it is closed.

    Args:
        place: The checkpoint, and where it begins to read.
        limits: Of the segments of a lander, and the records for which a batch waits.
        bounded: Finish when every split has reached its newest record.
        eager: Land what is there as soon as a batch waits for it; otherwise landers fill their
            segments for `max_wait`.
        compression: Of the segments, as Parquet names it; None for those that are read once.
        on_resubscribe: Called in the loop thread for each recoverable end of a subscription.

    Raises:
        OptionError: If the source locks its records, or Spark has too few cores.
        SetupError: If executors lack a library, or a setting of Spark stands in the way.
        CheckpointError: If executors cannot write to the checkpoint.
        FanOutError: If the source cannot be opened.
    """

    def __init__(
        self,
        spark: SparkSession,
        loop: LoopThread,
        source: Source,
        place: LandingPlace,
        landing: OnExecutors,
        *,
        limits: BatchLimits,
        bounded: bool,
        eager: bool = True,
        compression: str | None = None,
        on_resubscribe: OnResubscribe | None = None,
    ) -> None:
        self._loop = loop
        self._source = source
        self._place = place
        self._bounded = bounded
        self._eager = eager
        self._min_records = limits.min_records
        self._landers = landing.landers
        self._on_resubscribe = on_resubscribe
        location = check_landers(
            spark,
            place.storage,
            landers=landing.landers,
            modules=(LanderTask.__module__, type(source).__module__),
            extras=_extras(source, place.storage),
            storage_options=landing.storage_options,
        )
        settings = dict(spark.sparkContext.getConf().getAll())
        host, bound = _addresses(settings)
        certificate = new_certificate() if spark_encrypts(settings) else None
        secret = secrets.token_bytes(SECRET_BYTES)
        listening: concurrent.futures.Future[LandersReading] = concurrent.futures.Future()
        control = partial(
            ControlServer,
            bound,
            landing.control_port,
            secret,
            tls=None if certificate is None else driver_tls(certificate),
        )
        with ExitStack() as resources:
            self._task: asyncio.Task[None] | None = None
            self._serving = loop.start(self._serve(listening, control))
            resources.callback(self._end_serving)
            self._reading = listening.result()
            self._coordinator = self._reading.coordinator
            work = LanderTask(
                source=source,
                location=location,
                storage_options=landing.storage_options,
                run=place.run,
                limits=limits,
                available_now=bounded,
                compression=compression,
                address=(host, self._reading.address[1]),
                secret=secret,
                certificate=None if certificate is None else certificate.certificate,
            )
            _check_travels(work)
            jobs = resources.enter_context(
                LanderJobs(spark, work, landers=landing.landers, on_end=self._task_ended)
            )
            # Landers that are told to stop end by themselves, before their jobs are cancelled.
            resources.callback(lambda: loop.call(self._coordinator.close()))
            resources.callback(jobs.start_no_more)
            self._resources = resources.pop_all()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the stream, as soon as it is known."""
        if self._coordinator.failure is not None:
            return self._coordinator.failure
        if not self._serving.done() or self._serving.cancelled():
            return None
        error = self._serving.exception()
        return None if error is None else first_error(error)

    def statistics(self) -> Statistics:
        """Return the counters of all landers together."""
        return self._coordinator.statistics()

    def take(self, idle: float) -> LandedBatch | NoRecords | Stopped:
        """Block until there are records, for `idle` seconds at most.

        The failure of the stream is raised after its last records.
        """
        return self._loop.call(self.next(idle))

    async def next(self, idle: float) -> LandedBatch | NoRecords | Stopped:
        """Do as `take` in the loop thread, without blocking.

        Cancellation: nothing is handed over.
        """
        try:
            return await self._coordinator.next(idle)
        except StreamStateError:
            # The result of its task has the reason.
            await in_thread(lambda: concurrent.futures.wait([self._serving], _END_SECONDS))
            if (failure := self.failure) is not None:
                raise failure from None
            raise

    def acknowledge(self, positions: Checkpoint) -> None:
        """Acknowledge everything up to `positions` to the service; it was handled."""
        self._loop.call(self.acknowledge_landed(positions))

    async def acknowledge_landed(self, positions: Checkpoint) -> None:
        """Acknowledge everything up to `positions` to the service; in the loop thread."""
        await self._reading.acknowledge(positions)

    def stop(self) -> None:
        """Let `take` return `Stopped` at once from now on."""
        self._loop.call_soon(self._coordinator.stop)

    def close(self) -> None:
        """End all landers, within seconds."""
        self._resources.close()

    def _end_serving(self) -> None:
        self._loop.call_soon(lambda: self._task is not None and self._task.cancel())
        concurrent.futures.wait([self._serving], _END_SECONDS)

    def _task_ended(self, lander: int, error: BaseException | None) -> None:
        self._loop.call_soon(lambda: self._coordinator.task_ended(lander, error))
        if isinstance(error, (LanderCancelledError, SparkLostError)):
            self._loop.call_soon(lambda: self._coordinator.fail(error))

    async def _serve(
        self,
        listening: concurrent.futures.Future[LandersReading],
        control: Callable[[Callable[[Channel], Awaitable[None]]], ControlServer],
    ) -> None:
        self._task = asyncio.current_task()
        try:
            opening = open_for_landers(
                self._source,
                self._place,
                control,
                assignment=Assignment(self._landers),
                bounded=self._bounded,
                eager=self._eager,
                min_records=self._min_records,
                on_resubscribe=self._on_resubscribe,
            )
            async with opening as reading:
                _check_source(reading.opened)
                listening.set_result(reading)
                await reading.run()
        except BaseException as error:
            if not listening.done():
                listening.set_exception(first_error(error))
            raise


def _addresses(settings: Mapping[str, str]) -> tuple[str, str]:
    """Return where executors reach the driver, and where it listens.

    Spark puts an address of IPv6 into brackets, and a socket takes none.
    """
    host = settings["spark.driver.host"]
    bound = settings.get("spark.driver.bindAddress", host)
    return host.strip("[]"), bound.strip("[]")


def _check_travels(work: LanderTask) -> None:
    try:
        cloudpickle.dumps(work)  # type: ignore[no-untyped-call]
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"the source cannot be sent to executors: {text_of(error)}; leave out what exists on "
            f"the driver alone, such as session=, and let executors find their own credentials"
        ) from error


def _check_source(opened: Opened) -> None:
    if opened.connection.capabilities.lending is not None:
        raise OptionError(
            f"{opened.connection.identity} locks records for one stream, so landers cannot read "
            f"it; leave landing= out, or start more queries on the group"
        )


def _extras(source: Source, storage: Storage) -> str:
    """Return the extras that a lander needs."""
    part = type(source).__module__.split(".")[1:2]
    service = part if part in (["kinesis"], ["kafka"]) else []
    stores = [] if isinstance(storage, LocalStorage) else ["object-storage"]
    return ",".join([*service, "spark", *stores])
