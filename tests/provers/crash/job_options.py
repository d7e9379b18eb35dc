"""The options of a driver of the job."""

from __future__ import annotations

from typing import Final, final

import msgspec

from tests.provers.crash.moments import Pipeline, Sink

__all__ = ("CLUSTER_CORES", "JobOptions")

# Of each worker of the cluster: four landers, and batches.
CLUSTER_CORES: Final = 6


@final
class JobOptions(msgspec.Struct, frozen=True):
    """The options of a driver of the job.

    Args:
        root: The directory of the campaign.
        pipelines: The pipelines that it runs.
        endpoint_url: The endpoint of Kinesis; the stream is named like the input of the pipeline.
        bootstrap_servers: The addresses of Kafka.
        max_records: The most records in a batch.
        at_least_once: The pipelines that write at least once instead of exactly once.
        master: Spark's master; empty for a session in the driver's process alone.
        sink: What it writes to.
        location: The location of its destination; empty for Kafka.
        planted: The name of a bug that is planted into its driver; empty for none.
    """

    root: str
    pipelines: tuple[Pipeline, ...]
    endpoint_url: str
    bootstrap_servers: str
    max_records: int
    at_least_once: tuple[Pipeline, ...] = ()
    master: str = ""
    sink: Sink = Sink.KAFKA
    location: str = ""
    planted: str = ""
