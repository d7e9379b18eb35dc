from __future__ import annotations

import argparse
import base64
from typing import Any

import pytest

from fanout.testing.kinesis.list_shards import ListShardsError, decode_token
from fanout.testing.kinesis.polling import ShardIterator
from fanout.testing.kinesis.process import AdminApplication
from fanout.testing.kinesis.server import _parse_rules

NESTED = b"[" * 100_000


@pytest.mark.parametrize(
    "fields",
    [b"", b"5", b"{}", b"\xff", b"[1,2,3,4]", b'["a","b","c","d"]', b'["a","b",1]', NESTED],
    ids=lambda fields: repr(fields[:20]),
)
def test_a_token_of_somebody_else_is_invalid(fields: bytes) -> None:
    token = base64.b64encode(fields).decode()
    with pytest.raises(ListShardsError, match=r"NextToken .* is invalid"):
        decode_token(token)
    with pytest.raises(ValueError, match=r"ShardIterator .* is invalid"):
        ShardIterator.decode(token)


def test_a_token_that_is_no_base64_is_invalid() -> None:
    with pytest.raises(ListShardsError):
        decode_token("\u0661")
    with pytest.raises(ValueError, match="is invalid"):
        ShardIterator.decode("\u0661")


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"null", b"\xff", b'{"other":1}', b'{"count":NaN}', NESTED],
    ids=lambda body: repr(body[:20]),
)
def test_arguments_that_are_none_are_refused_with_a_sentence(body: bytes) -> None:
    def operation(count: int = 1) -> int:
        return count

    app: Any = AdminApplication(None, {"operation": operation})
    status, answer = app._call("operation", body)
    assert status == "400 Bad Request"
    assert answer["error"].startswith("these are no arguments of the operation")
    assert app._call("operation", b"") == ("200 OK", {"result": 1})


@pytest.mark.parametrize(
    "rules", ["", "[]", '{"x":1}', '{"heartbeat":"x"}', NESTED.decode()], ids=range(5)
)
def test_rules_that_are_none_are_refused(rules: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _parse_rules(rules)
