"""What the campaign and its driver tell each other: options on the way in, lines on the way out."""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from tests.provers.crash.moments import Pipeline  # noqa: TC001 - msgspec reads the annotation

__all__ = ("DriverOptions", "Failed", "Message", "Started")


@final
class DriverOptions(msgspec.Struct, frozen=True):
    """What the job needs to know.

    Args:
        root: The directory of the campaign.
        pipelines: What it runs.
        endpoint_url: Where Kinesis is; the stream is named like the input of the pipeline.
        bootstrap_servers: Where Kafka is.
        max_records: The most records in a batch.
        at_least_once: Those that write at least once instead of exactly once.
    """

    root: str
    pipelines: tuple[Pipeline, ...]
    endpoint_url: str
    bootstrap_servers: str
    max_records: int
    at_least_once: tuple[Pipeline, ...] = ()


@final
class Started(msgspec.Struct, frozen=True, tag=True):
    """The queries run.

    Args:
        jvm_pid: The process id of Spark's JVM.
    """

    jvm_pid: int


@final
class Failed(msgspec.Struct, frozen=True, tag=True):
    """A query has ended by an error.

    Args:
        sentence: What the error says.
    """

    sentence: str


Message: TypeAlias = Started | Failed
