"""Shared parts of the messages in Kafka's flexible versions (KIP-482).

Every structure of such a version ends with tagged fields, of which these messages use none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import BytesIO

NO_TAGS: Final[dict[int, bytes]] = {}
"""The tagged fields of a structure that has none."""

ANY_TOPIC_ID: Final = bytes(16)
"""The id of a topic that is not known, or is named instead."""

TOPIC: Final = ("topic", CompactString())
"""The field with the name of a topic."""


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka is untyped
    """An id of sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes of the id."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read the bytes of an id."""
        return data.read(16)


def flexible_schema(*fields: tuple[str, Any]) -> Any:
    """Return the schema of a message with these fields, and tagged fields after them."""
    return Schema(*fields, ("tags", TaggedFields))


def flexible_array(*fields: tuple[str, Any]) -> Any:
    """Return an array of structures with these fields, and tagged fields after them."""
    return CompactArray(*fields, ("tags", TaggedFields))


def rows(name: str, *fields: tuple[str, Any]) -> tuple[str, Any]:
    """Return a field that is an array of structures with these fields."""
    return name, flexible_array(*fields)


TOPIC_PARTITIONS: Final = flexible_array(TOPIC, ("partitions", CompactArray(Int32)))
"""An array of topics, each with the numbers of some of its partitions."""

_OFFSET: Final = (
    ("partition", Int32),
    ("offset", Int64),
    ("leader_epoch", Int32),
    ("metadata", CompactString()),
)

OFFSETS: Final = rows("topics", TOPIC, rows("partitions", *_OFFSET))
"""The field with offsets to be stored; `offset_rows` makes its value."""

STORED_OFFSETS: Final = rows("topics", TOPIC, rows("partitions", *_OFFSET, ("error_code", Int16)))
"""The field with offsets that are stored."""

PARTITION_CODES: Final = rows("partitions", ("partition", Int32), ("error_code", Int16))
"""The field with the error codes of partitions."""


def offset_rows(topics: Sequence[tuple[str, Sequence[tuple[int, int, int, str]]]]) -> list[Any]:
    """Return topics with a number, offset, leader epoch and text of partitions as `OFFSETS`."""
    return [
        (
            topic,
            [(number, at, epoch, text, NO_TAGS) for number, at, epoch, text in partitions],
            NO_TAGS,
        )
        for topic, partitions in topics
    ]
