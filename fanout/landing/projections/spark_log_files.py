"""The files of the log that Spark's file sink keeps in `_spark_metadata`, byte for byte.

Spark's sources are CompactibleFileStreamLog, FileStreamSinkLog and MetadataLogFileIndex, the same
from 3.5 to 4.3. Of the actions only `add` is safe: a reader takes `delete` for one more `add`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, final
from urllib.parse import quote

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.landing.storage.object_location import is_object_location, parse_location

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERVAL: Final = 10
"""Every so many files one repeats all lines; a reader derives it from the newest two of those."""

COMPACT: Final = ".compact"
"""How the names of those files end."""

_VERSION: Final = b"v1"
# What java.net.URI leaves in a path as it is, besides letters and digits.
_PLAIN: Final = "/-_.!~*'();:@&=+$,"
# Hadoop's default on local disks and S3. Spark splits files by settings of its own.
_BLOCK_SIZE: Final = 32 * 1024 * 1024


@final
class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spark's SinkFileStatus; the order of its fields is Spark's."""

    path: str
    size: int
    isDir: bool  # noqa: N815 - Spark's name
    modificationTime: int  # noqa: N815 - the same
    blockReplication: int  # noqa: N815 - the same
    blockSize: int  # noqa: N815 - the same
    action: Literal["add"]


def table_uri(location: str) -> str | None:
    """Return the URI by which Spark's Hadoop knows a location; None where it cannot know it.

    Spark shows the files of a log only if their URIs begin with that of the directory that it was
    told to read. So there is one spelling: `file:///` and the absolute path, `s3a://`, `gs://`, or
    `abfss://container@account.dfs.core.windows.net/`. A location on Azure without its account has
    none.
    """
    if not is_object_location(location):
        return f"file://{_quoted(os.path.abspath(location))}"  # noqa: PTH100 - it keeps links
    place = parse_location(location)
    if place.service == "Azure":
        if not place.account:
            return None
        # The other scheme without TLS is another name for Hadoop.
        scheme = "abfs" if place.uri.startswith("abfs://") else "abfss"
        authority = place.uri.partition("://")[2].partition("/")[0].replace(".blob.", ".dfs.")
    else:
        scheme = "s3a" if place.service == "S3" else "gs"
        authority = place.bucket
    return f"{scheme}://{authority}/{_quoted(place.prefix)}".removesuffix("/")


def is_compact(number: int) -> bool:
    """Say whether the file of a number repeats all lines."""
    return (number + 1) % INTERVAL == 0


def next_compact(number: int) -> int:
    """Return the first number from this one on whose file repeats all lines."""
    return number + INTERVAL - 1 - number % INTERVAL


def log_file_name(number: int) -> str:
    """Return the name of a file of the log."""
    return f"{number}{COMPACT}" if is_compact(number) else str(number)


def log_file_number(name: str) -> int | None:
    """Return the number of a file of the log; None for a name that is not of one."""
    stem = name.removesuffix(COMPACT)
    return int(stem) if stem.isascii() and stem.isdecimal() else None


def files_to_read(newest: int) -> list[str]:
    """Return the names of the files that a reader reads, and insists on, by the newest one."""
    first = max(0, (newest + 1) // INTERVAL * INTERVAL - 1)
    return [log_file_name(number) for number in range(first, newest + 1)]


def encode_line(uri: str, size: int, written_at: int) -> bytes:
    """Encode what the log says of a file; the time is in milliseconds since the Unix epoch."""
    return msgspec.json.encode(_Line(uri, size, False, written_at, 1, _BLOCK_SIZE, "add"))  # noqa: FBT003


def encode_file(lines: Iterable[bytes]) -> bytes:
    """Encode a file of the log."""
    return b"\n".join([_VERSION, *lines])


def decode_file(data: bytes) -> list[tuple[str, int, bytes]] | None:
    """Return the URI, the time in milliseconds and the bytes of each line; None if damaged."""
    version, *lines = data.split(b"\n")
    try:
        found = [(msgspec.json.decode(line, type=_Line), line) for line in lines]
    except MALFORMED_JSON:
        return None
    if version != _VERSION or any(each.isDir for each, _ in found):
        return None
    return [(each.path, each.modificationTime, line) for each, line in found]


def _quoted(path: str) -> str:
    """Quote a path as Hadoop's `Path.toUri` does: what is not ASCII stays as it is."""
    return "".join(c if c > "\x7f" and c.isprintable() else quote(c, safe=_PLAIN) for c in path)
