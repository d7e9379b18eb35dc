"""The queries of the demo, and the messages of the drivers that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias, final

import msgspec

from fanout.demo.options import DemoFailedError
from fanout.demo.plan import Kill, ProcessKill, SparkProcess  # noqa: TC001 - msgspec reads them
from fanout.demo.sources import ShuffleSettings, SourceSettings  # noqa: TC001 - see above
from fanout.testing.spark.driver_process import Message, start_driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from fanout.testing.spark.driver_process import DriverProcess


@final
class QueryOptions(msgspec.Struct, frozen=True):
    """The options of a driver.

    Args:
        query: The name of its query.
        root: The directory of the run.
        s3: The endpoint of S3, if checkpoints and output are there.
        source: The source that it reads.
        shuffle: The shuffle that it writes the records to, by key; None if it writes Parquet.
        max_records: The most records in a batch.
        kill: The batch in which the driver waits to be killed; None for none.
        landers: How many landers read; 0 for the driver itself.
        kill_lander: The number of records after which the driver kills a lander; None for never.
        dataframe: Whether the query is one of a streaming DataFrame.
        kill_processes: The kills of processes that Spark has started for it.
    """

    query: str
    root: str
    s3: str | None
    source: SourceSettings
    shuffle: ShuffleSettings | None
    max_records: int
    kill: Kill | None = None
    landers: int = 0
    kill_lander: int | None = None
    dataframe: bool = False
    kill_processes: tuple[ProcessKill, ...] = ()


@final
class BatchWritten(msgspec.Struct, frozen=True, tag=True):
    """The handler has written a batch.

    Args:
        batch_id: Its id.
        rows: Its records.
    """

    batch_id: int
    rows: int


@final
class Holding(msgspec.Struct, frozen=True, tag=True):
    """The handler waits inside a batch to be killed.

    Args:
        batch_id: The batch's id.
        written: Whether its output is written.
    """

    batch_id: int
    written: bool


@final
class Resubscribed(msgspec.Struct, frozen=True, tag=True):
    """A subscription is to be opened again.

    Args:
        split: Its split.
        cause: The class of the error that ended the one before.
        delay: Seconds until the next attempt.
    """

    split: str
    cause: str
    delay: float


@final
class Reading(msgspec.Struct, frozen=True, tag=True):
    """The query is reading.

    Args:
        splits: The splits that it reads.
    """

    splits: tuple[str, ...]


@final
class LanderKilled(msgspec.Struct, frozen=True, tag=True):
    """The driver has killed the process of a lander.

    Args:
        lander: Its number.
        pid: The id of the process.
        splits: How many splits it has read.
    """

    lander: int
    pid: int
    splits: int


@final
class ProcessesKilled(msgspec.Struct, frozen=True, tag=True):
    """The driver has killed processes that Spark has started.

    Args:
        process: Their kind.
        pids: Their ids.
    """

    process: SparkProcess
    pids: tuple[int, ...]


QueryMessage: TypeAlias = (
    Message | BatchWritten | Holding | Resubscribed | Reading | LanderKilled | ProcessesKilled
)

MESSAGES: Final[msgspec.json.Decoder[QueryMessage]] = msgspec.json.Decoder(QueryMessage)

OnMessage: TypeAlias = "Callable[[DemoQuery, QueryMessage], None]"
OnDown: TypeAlias = "Callable[[DemoQuery], Awaitable[None]]"


@final
class DemoQuery:
    """Run a query: a driver, and another one after it was killed.

    `query` is the name of the query, and `killed_in` the batch in which a driver was killed; None
    if none was.

    Args:
        options: The options of its first driver; the next one is not killed.
        scratch: The directory of the drivers' temporary files.
        environment: The variables that are added to their environment.
        on_message: Called with each message of a driver.
        on_down: Awaited while there is no driver, between a kill and the start of another one.
    """

    def __init__(
        self,
        options: QueryOptions,
        *,
        scratch: Path,
        environment: Mapping[str, str],
        on_message: OnMessage,
        on_down: OnDown,
    ) -> None:
        self.query = options.query
        self.killed_in: int | None = None
        self._options = options
        self._scratch = scratch
        self._environment = environment
        self._on_message = on_message
        self._on_down = on_down
        self._driver: DriverProcess[QueryMessage] | None = None
        self._stopping = False

    async def run(self, log: BinaryIO) -> None:
        """Run until `stop` is called.

        Args:
            log: An open file for the stderr of drivers.

        Raises:
            DemoFailedError: If a driver ends by itself.

        Cancellation: the driver and its JVM are killed and waited for.
        """
        options = self._options
        while True:
            async with start_driver(
                "fanout.demo.driver",
                options,
                MESSAGES,
                scratch=self._scratch,
                environment=self._environment,
                log=log,
            ) as driver:
                self._driver = driver
                await self._listen(driver)
            if self._stopping:
                return
            options = msgspec.structs.replace(options, kill=None)
            await self._on_down(self)

    def stop(self) -> None:
        """Let the driver finish its batch and end."""
        assert self._driver is not None, "the query runs"
        self._stopping = True
        self._driver.stop()

    async def _listen(self, driver: DriverProcess[QueryMessage]) -> None:
        """Handle the messages of a driver until it ends because it was killed or stopped."""
        killed = False
        async for message in driver.messages():
            self._on_message(self, message)
            if isinstance(message, Holding):
                killed = True
                self.killed_in = message.batch_id
                driver.kill()
        if not killed and not self._stopping:
            raise DemoFailedError("the Spark driver has ended by itself", explained=False)
