"""The options of a driver, and the messages that it sends."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias, final

import msgspec

from fanout.demo.options import DemoOptions  # noqa: TC001 - msgspec reads the annotations
from fanout.demo.plan import SparkProcess  # noqa: TC001 - see above
from fanout.demo.workspace import Workspace  # noqa: TC001 - see above
from fanout.testing.spark.driver_process import Message


@final
class QueryName(StrEnum):
    """A query: the only one, or the one that writes the shuffle or reads it."""

    ONLY = "query"
    SHUFFLING = "shuffling query"
    READING = "reading query"


@final
class QueryOptions(msgspec.Struct, frozen=True):
    """The options of a driver."""

    query: QueryName
    demo: DemoOptions
    address: str  # the URL of Kinesis, or the address of the broker
    workspace: Workspace
    restarted: bool = False  # after another driver was killed


@final
class BatchBegun(msgspec.Struct, frozen=True, tag=True):
    """The handler has been given a batch, and the watermark behind it if it reads a shuffle."""

    batch_id: int
    watermark: int | None


@final
class BatchWritten(msgspec.Struct, frozen=True, tag=True):
    """The handler has written so many records of a batch, which came from these splits."""

    batch_id: int
    rows: int
    splits: frozenset[str] = frozenset()


@final
class Holding(msgspec.Struct, frozen=True, tag=True):
    """The handler waits inside a batch to be killed; its output may be written."""

    batch_id: int
    written: bool


@final
class Resubscribed(msgspec.Struct, frozen=True, tag=True):
    """A subscription is to be opened again, in seconds, after an error of this class."""

    split: str
    cause: str
    delay: float


@final
class Reading(msgspec.Struct, frozen=True, tag=True):
    """The query is reading these splits.

    The driver has left out so many records that came again although a segment has them.
    """

    splits: tuple[str, ...]
    left_out: int = 0


@final
class ProcessesKilled(msgspec.Struct, frozen=True, tag=True):
    """The driver has killed so many processes of a kind; the description is for people."""

    process: SparkProcess
    count: int
    description: str


QueryMessage: TypeAlias = (
    Message | BatchBegun | BatchWritten | Holding | Resubscribed | Reading | ProcessesKilled
)

MESSAGES: Final[msgspec.json.Decoder[QueryMessage]] = msgspec.json.Decoder(QueryMessage)
