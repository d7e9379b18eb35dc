from __future__ import annotations

import pytest

from fanout.kinesis.aws.api import HashRange, hash_key_of


@pytest.mark.parametrize(("key", "inside"), [(9, False), (10, True), (20, True), (21, False)])
def test_both_ends_of_a_range_are_inside(key: int, inside: bool) -> None:  # noqa: FBT001
    assert (key in HashRange(10, 20)) is inside


@pytest.mark.parametrize(
    ("hash_range", "whole"),
    [
        (HashRange(), True),
        (HashRange(0, 2**128 - 1), True),
        (HashRange(1, 2**128 - 1), False),
        (HashRange(0, 2**128 - 2), False),
    ],
)
def test_a_whole_range_has_every_hash_key(
    hash_range: HashRange,
    whole: bool,  # noqa: FBT001
) -> None:
    assert hash_range.is_whole is whole


def test_the_hash_key_of_a_partition_key_is_its_md5() -> None:
    assert hash_key_of("a") == 0x0CC175B9C0F1B6A831C399E269772661
    assert hash_key_of("\u00e9") == 0x66DDCD97CFDEABB2F6FB8A999B4BC76F
