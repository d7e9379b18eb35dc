"""A source on the embedded Kinesis, paced for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.httpsession import DEFAULT_CA_BUNDLE

from fanout.testing.kinesis_server import KinesisServer
from fanout.testing.rules import KinesisRules
from tests.kinesis.reading import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One certificate: each client reads all that it is given, and none speaks TLS here."""
    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(DEFAULT_CA_BUNDLE).read_text(encoding="utf-8").partition(end)
    path = tmp_path_factory.mktemp("authority") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    return path


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, authority: Path) -> None:
    """Keep the machine's own AWS configuration out of a test."""
    for name in (
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_SESSION_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


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
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Stream]:
    """A stream on an embedded Kinesis."""
    # As often as the server allows; the service's own figures are the library's, too.
    monkeypatch.setattr("fanout.kinesis.options._FLOOR", max(rules.call_interval, 0.01))
    monkeypatch.setattr("fanout.kinesis.options._SPACING", rules.takeover_after)
    monkeypatch.setattr("fanout.kinesis.options._SLOW", 0.05)
    if not rules.polls_per_second:
        monkeypatch.setattr("fanout.kinesis.options.CALL_INTERVAL", 0.01)
        monkeypatch.setattr("fanout.kinesis.pace.CALL_INTERVAL", 0.01)
        monkeypatch.setattr("fanout.kinesis.pace.IDLE_INTERVAL", 0.02)
    with KinesisServer(rules) as server:
        yield Stream(server, shards=shards)
