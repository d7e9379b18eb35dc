"""A stream on the embedded Kinesis, read in the fast mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.testing.fast_mode import fast
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.kinesis.reading import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def usual_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable chooses other hosts of AWS than the usual ones, or a proxy."""
    for name in (
        "AWS_ACCOUNT_ID_ENDPOINT_MODE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_KINESIS",
        "AWS_ENDPOINT_URL_STS",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_USE_FIPS_ENDPOINT",
        *("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("all_proxy", "http_proxy", "https_proxy", "no_proxy"),
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rules() -> KinesisRules:
    """The figures of the server; parametrize `rules` for others."""
    return KinesisRules.fast()


@pytest.fixture
def shards() -> int:
    """The shards of the stream at first; parametrize `shards` for more."""
    return 1


@pytest.fixture
def stream(
    rules: KinesisRules,
    shards: int,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Stream]:
    """A stream on an embedded Kinesis."""
    with fast(rules), KinesisServer(rules) as server:
        yield Stream(server, shards=shards)
