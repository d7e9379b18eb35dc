"""What the demo and its Spark driver tell each other: options on the way in, lines on the way out.

The driver's stdin carries nothing: it is closed to stop the driver, or closes when the demo dies.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.demo.plan import Kill  # noqa: TC001 - msgspec reads the annotation
from fanout.demo.sources import ShuffleSettings, SourceSettings  # noqa: TC001 - see above

__all__ = (
    "BatchWritten",
    "DriverOptions",
    "Failed",
    "Holding",
    "Message",
    "Reading",
    "Resubscribed",
    "Started",
    "decode_message",
)


@final
class DriverOptions(msgspec.Struct, frozen=True):
    """What the driver needs to know.

    Args:
        query: The name of its query.
        root: The directory of the run.
        source: What it reads.
        shuffle: Where it distributes what it reads by key; None if it writes Parquet.
        max_records: The most records in a batch.
        kill: When the driver holds still to be killed; None for never.
    """

    query: str
    root: str
    source: SourceSettings
    shuffle: ShuffleSettings | None
    max_records: int
    kill: Kill | None


@final
class Started(msgspec.Struct, frozen=True, tag=True):
    """The query runs.

    Args:
        jvm_pid: The process id of Spark's JVM, which outlives a killed driver by a moment.
    """

    jvm_pid: int


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
    """How the query stands.

    Args:
        splits: The splits that it knows.
    """

    splits: tuple[str, ...]


@final
class Failed(msgspec.Struct, frozen=True, tag=True):
    """The query has ended by an error.

    Args:
        sentence: What the error says.
    """

    sentence: str


Message: TypeAlias = Started | BatchWritten | Holding | Resubscribed | Reading | Failed

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode_message(line: bytes) -> Message | None:
    """Return the message in a line of the driver's stdout; None if something else wrote it.

    The JVM has the same stdout, and may print what it likes.
    """
    try:
        return _decoder.decode(line)
    except MALFORMED_JSON:
        return None
