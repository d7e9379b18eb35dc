"""The stream of the demo, and what comes of putting records into it and changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, final

import msgspec

if TYPE_CHECKING:
    from fanout.demo.kafka import KafkaStream
    from fanout.demo.kinesis import KinesisStream

STREAM: Final = "orders"
"""The name of the stream or topic."""


@final
class SentRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where the service has stored a record."""

    split: str
    sequence: str
    time: int | None = None  # of its event, in milliseconds since the Unix epoch


@final
class ActionResult(msgspec.Struct, frozen=True):
    """The result of actions: a description for people, and the splits that were closed and created.

    A split that was created and closed again is in both.
    """

    description: str
    ended: tuple[str, ...] = ()
    born: tuple[str, ...] = ()


DemoStream: TypeAlias = "KinesisStream | KafkaStream"
"""A stream of a service that runs on this machine for one run of the demo."""
