from __future__ import annotations

import json

import pytest

from fanout.errors import PositionError, ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.share.unconfirmed import (
    MAX_UNCONFIRMED,
    read_unconfirmed,
    write_unconfirmed,
)
from fanout.landing.log import entries

SOURCE = "kafka-share:cluster:group"
P, Q = Partition("orders", 0), Partition("returns", 3)
PIECES = [(P, 0, 5), (P, 7, 8), (Q, 10, 11)]


def test_what_was_written_is_read_back() -> None:
    assert read_unconfirmed(write_unconfirmed(SOURCE, PIECES, {}), SOURCE, {}) == PIECES
    assert read_unconfirmed("", SOURCE, {}) == []


def test_records_of_a_replaced_topic_of_the_name_are_not_unconfirmed() -> None:
    text = write_unconfirmed(SOURCE, PIECES, {"orders": "11", "returns": "22"})
    assert read_unconfirmed(text, SOURCE, {"orders": "99", "returns": "22"}) == PIECES[2:]
    assert read_unconfirmed(text, SOURCE, {"returns": "22"}) == PIECES


def damaged(**changes: object) -> str:
    return json.dumps(json.loads(write_unconfirmed(SOURCE, PIECES[:1], {})) | changes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "are damaged"),
        (damaged(version=2), "have format version 2"),
        (damaged(source="other"), "belong to other"),
        (damaged(more=1), "are damaged"),
        (damaged(topics={"a": {"id": "", "partitions": {"0": [[5, 5]]}}}), "has no records"),
        (damaged(topics={"a": {"id": "", "partitions": {"-1": [[5, 6]]}}}), "are damaged"),
        (" " * (1024 * 1024 + 1), "more than 1048576"),
    ],
)
def test_what_is_damaged_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PositionError, match=reason):
        read_unconfirmed(text, SOURCE, {})


def test_too_many_unconfirmed_deliveries_are_an_error() -> None:
    with pytest.raises(ServiceError, match="the brokers take no acknowledgements in time"):
        write_unconfirmed(SOURCE, [(P, 2 * n, 2 * n + 1) for n in range(100_000)], {})


def test_a_checkpoint_takes_as_much_as_is_written() -> None:
    assert MAX_UNCONFIRMED <= entries.MAX_UNCONFIRMED
