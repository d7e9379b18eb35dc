"""The records of the demo, as they are generated, sent and read.

Each carries its number, so that each is unique.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEYS = 1_000
_PAYLOAD_BYTES = 32

# An event every 4 ms; its record is up to a second late.
_EVERY = 4
_LATENESS = 1_000
# Has no divisor in common with the lateness, so that each one occurs.
_SCATTER = 7_919

OUT_OF_ORDERNESS: Final = _LATENESS / 1_000
"""Seconds by which the event time of a record may be earlier than that of one before it."""


class _Data(msgspec.Struct, frozen=True):
    number: int
    payload: str


@final
@dataclass(frozen=True, slots=True)
class Record:
    """A record to send.

    Args:
        number: Its place among all records, from 0.
        key: Its partition key.
        data: Its bytes.
    """

    number: int
    key: str
    data: bytes


def generate(count: int, seed: int) -> Iterator[Record]:
    """Draw a number of records from a seed."""
    random = Random(seed)  # noqa: S311 - records to repeat, not secrets
    for number in range(count):
        data = _Data(number, random.randbytes(_PAYLOAD_BYTES).hex())
        yield Record(number, f"customer-{random.randrange(_KEYS)}", msgspec.json.encode(data))


def number_in(data: bytes) -> int | None:
    """Return the number that a record's data carries; None if the data is no record of ours."""
    try:
        return msgspec.json.decode(data, type=_Data).number
    except MALFORMED_JSON:
        return None


def event_time(number: int, first: int) -> int:
    """Return the event time of a record, in milliseconds since the Unix epoch.

    Args:
        number: The number of the record.
        first: The event time of the first record.
    """
    return first + number * _EVERY - (number * _SCATTER) % _LATENESS


def digest(data: bytes) -> str:
    """Return a digest of a record's data."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@final
class SentRecord(msgspec.Struct, frozen=True):
    """A record as it was sent.

    Args:
        number: Its number.
        key: Its partition key.
        split: Its split, as the service reported it.
        sequence: Its sequence number, as the service reported it.
        digest: Of its data.
        time: Its event time in milliseconds since the Unix epoch; None where it has none.
    """

    number: int
    key: str
    split: str
    sequence: int
    digest: str
    time: int | None = None


@final
class ReadRecord(msgspec.Struct, frozen=True):
    """A record as the query wrote it.

    Args:
        batch: The id of its batch.
        number: The number in its data; None where the data has none.
        key: Its partition key.
        split: Its split.
        sequence: Its sequence number.
        digest: Of its data.
        time: Its event time in milliseconds since the Unix epoch; None where it has none.
    """

    batch: int
    number: int | None
    key: str
    split: str
    sequence: int
    digest: str
    time: int | None = None


@final
class Restart(msgspec.Struct, frozen=True):
    """A restart of the query after which it has to read splits that are new to it.

    Args:
        killed_in: The id of the batch in which the query was killed; its segment was sealed.
        born: The splits that were created before the query was started again.
    """

    killed_in: int
    born: tuple[str, ...]


Reported: TypeAlias = "tuple[int, int | None]"
"""A batch, and the watermark behind it in milliseconds since the Unix epoch; None for none."""
