"""Open the destination of a sink for the time of a campaign."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.provers.crash.moments import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fanout.testing.kinesis.process import KinesisProcess
    from tests.provers.crash.sinks.destination import Destination

__all__ = ("open_destination",)


@contextmanager
def open_destination(
    sink: Sink, root: Path, kinesis: KinesisProcess | None
) -> Iterator[Destination | None]:
    """Open what a job writes to while the block runs.

    Each is imported only where it is used: no environment has what all of them need.

    Args:
        sink: The sink.
        root: The directory of the campaign.
        kinesis: The server that the job reads from, and may write to.

    Yields:
        The destination; None for Kafka, whose topics belong to the broker.

    Raises:
        SetupError: If this environment cannot have it.
    """
    match sink:
        case Sink.KAFKA:
            yield None
        case Sink.PARQUET:
            from tests.provers.crash.sinks.parquet import ParquetDirectory  # noqa: PLC0415

            yield ParquetDirectory(root)
        case Sink.POSTGRES:
            from tests.provers.crash.sinks.postgres import open_postgres  # noqa: PLC0415

            with open_postgres(root) as tables:
                yield tables
        case Sink.JDBC:
            from tests.provers.crash.sinks.jdbc import open_jdbc  # noqa: PLC0415

            with open_jdbc(root) as tables_of_h2:
                yield tables_of_h2
        case Sink.DELTA:
            from tests.provers.crash.sinks.delta import DeltaTables  # noqa: PLC0415

            yield DeltaTables(root)
        case Sink.ICEBERG:
            from tests.provers.crash.sinks.iceberg import IcebergTables  # noqa: PLC0415

            yield IcebergTables(root)
        case Sink.KINESIS:
            from tests.provers.crash.sinks.kinesis import KinesisStream  # noqa: PLC0415

            assert kinesis is not None
            yield KinesisStream(kinesis)
