from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[3]
    size: int


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[3]
    size: int


THING = StoredFormat(
    wire=Thing, max_size=60, error=CheckpointError, version=3, hint="restore it from a backup"
)
ROWS = StoredFormat(wire=Row, max_size=60, error=CheckpointError, version=3, plural=True)


def test_what_this_version_wrote_is_read() -> None:
    assert THING.read(b'{"version": 3, "size": 7}', "x.json") == Thing(3, 7)
    assert ROWS.read("[3, 7]", "the rows") == Row(3, 7)


@pytest.mark.parametrize("data", ['{"version": 4, "news": []}', '{"news": [], "version": 4}'])
def test_a_newer_version_is_named_as_such(data: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        THING.read(data, "x.json")
    assert str(caught.value) == (
        "x.json has format version 4, which is newer: this library reads version 3; use the "
        "library version that wrote it"
    )


def test_an_older_version_is_not_named_newer() -> None:
    with pytest.raises(CheckpointError) as caught:
        ROWS.read("[2]", "the rows")
    assert str(caught.value) == (
        "the rows have format version 2, this library reads version 3; use the library version "
        "that wrote them"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"\xff",
        b'{"version": 3, "\xff": 7}',
        '{"version": 3, "\ud800": 7}',
        b'{"size": 7}',
        b'{"version": "3", "size": 7}',
        b'{"version": 3.5, "size": 7}',
        b'{"version": 3}',
        b'{"version": 3, "size": "7"}',
        b'{"version": 3, "size": 7, "more": 1}',
        b'{"version": 3, "size": 7',
    ],
)
def test_what_is_not_of_the_format_is_damaged(data: str | bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^x\.json is damaged \(.+\); restore it from a ba"):
        THING.read(data, "x.json")


def test_what_nests_too_deep_is_damaged() -> None:
    deep = StoredFormat(wire=Thing, max_size=10**6, error=CheckpointError, version=3)
    with pytest.raises(CheckpointError, match=r"^x\.json is damaged \(.+\)$"):
        deep.read(b'{"version": 3, "size": ' + b"[" * 100_000, "x.json")


def test_what_is_too_large_is_not_decoded() -> None:
    with pytest.raises(CheckpointError, match=r"^the rows take 61 bytes, more than 60$"):
        ROWS.read("[4, 7]".ljust(61), "the rows")
