"""Keywords in a message become the caller's words; values, paths and names stay."""

from __future__ import annotations

import pytest

from fanout.core.option_words import in_words_of_caller

WORDS = {
    "ca_file": "--ca-file",
    "share_group": "--share-group",
    "username": "--username",
    "insecure": "--insecure",
}


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (
            "ca_file='/etc/kafka/ca_file.pem' cannot be used",
            "--ca-file /etc/kafka/ca_file.pem cannot be used",
        ),
        ("ca_file='a b' cannot be used", "--ca-file 'a b' cannot be used"),
        ("cannot read /data/share_group/fanout", "cannot read /data/share_group/fanout"),
        ("cannot read share_group/fanout", "cannot read share_group/fanout"),
        ("cannot read ca_file.pem", "cannot read ca_file.pem"),
        ("there is no topic share_group; check it", "there is no topic share_group; check it"),
        ("there is no topic 'share_group'", "there is no topic 'share_group'"),
        ('there is no topic "username=a"', 'there is no topic "username=a"'),
        ("path='username=a' is odd", "path='username=a' is odd"),
        ("the user's ca_file, and the brokers'", "the user's --ca-file, and the brokers'"),
        ("pass share_group='a', or ca_file.", "pass --share-group a, or --ca-file."),
        ("or pass insecure=True if so", "or pass --insecure if so"),
        ("leave ca_file and username out", "leave --ca-file and --username out"),
        ("username must be 'a\0b'", "--username must be 'a\0b'"),
        ("a\0b needs a username", "a\0b needs --username"),
    ],
)
def test_only_keywords_are_replaced(message: str, written: str) -> None:
    assert in_words_of_caller(message, WORDS) == written
