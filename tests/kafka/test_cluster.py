from __future__ import annotations

from typing import Any

import pytest

from fanout.errors import OptionError
from fanout.kafka.cluster import Server, parse_servers


@pytest.mark.parametrize(
    ("text", "server", "shown"),
    [
        ("kafka-1.example:9093", Server("kafka-1.example", 9093), "kafka-1.example:9093"),
        ("kafka", Server("kafka", 9092), "kafka:9092"),
        (" 127.0.0.1:1 ", Server("127.0.0.1", 1), "127.0.0.1:1"),
        ("[::1]:65535", Server("::1", 65535), "[::1]:65535"),
        ("[fe80::1]", Server("fe80::1", 9092), "[fe80::1]:9092"),
    ],
)
def test_a_server_is_a_host_and_a_port(text: str, server: Server, shown: str) -> None:
    assert parse_servers([text]) == (server,)
    assert str(server) == shown


def test_servers_stand_in_a_sequence_or_between_commas() -> None:
    both = (Server("a", 1), Server("b", 2))
    assert parse_servers("a:1, b:2") == parse_servers(["a:1", "b:2"]) == both


@pytest.mark.parametrize(
    "bad",
    [
        "",
        [],
        ["a:0"],
        ["a:65536"],
        ["a:x"],
        ["::1"],
        "a:1,,b:2",
        ["user:canary@a:1"],
        ["kafka://a:1"],
        [b"a:1"],
        ["a b"],
    ],
)
def test_anything_else_is_refused_and_not_quoted(bad: Any) -> None:
    with pytest.raises(OptionError, match="bootstrap_servers must") as caught:
        parse_servers(bad)
    assert "canary" not in str(caught.value)
