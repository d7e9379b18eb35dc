"""The AWS SDK for Java v2 with its default settings, which are HTTP/2 and CBOR, as a client."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.clients.table import calls, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A JVM compiles the program, and loads the SDK.
pytestmark = pytest.mark.prove

READER = Path(__file__).parent / "KinesisReader.java"
RECORDS = 6_000
FIRST, SECOND, THIRD = (f"shardId-{index:012}" for index in range(3))


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def server(request: pytest.FixtureRequest) -> Iterator[KinesisServer]:
    rules = KinesisRules(heartbeat=1, takeover_after=0, call_interval=0, polls_per_second=0)
    with KinesisServer(rules, tls=request.param) as server:
        server.create_stream("orders", 3)
        yield server


@pytest.fixture
def read(
    java: str, jars: Callable[[str], list[Path]], server: KinesisServer, tmp_path: Path
) -> Callable[[], dict[str, list[list[str]]]]:
    """Run the program, and return the words of its lines by the first one."""

    def read() -> dict[str, list[list[str]]]:
        class_path = os.pathsep.join(map(str, jars("kinesis-sdk-java")))
        command = [
            java,
            *trusting(server.certificate, tmp_path),
            "-cp",
            class_path,
            str(READER),
            server.endpoint_url,
            "orders",
            "4",
        ]
        answer = subprocess.run(  # noqa: S603 (our own program)
            command, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr
        lines: defaultdict[str, list[list[str]]] = defaultdict(list)
        for line in answer.stdout.splitlines():
            first, *others = line.split()
            lines[first].append(others)
        return lines

    return read


def trusting(certificate: Path | None, directory: Path) -> list[str]:
    """Return the options of a JVM that trusts a certificate."""
    if certificate is None:
        return []
    trusted = pkcs12.PKCS12Certificate(
        load_pem_x509_certificate(certificate.read_bytes()), b"embedded"
    )
    store = directory / "trusted.p12"
    store.write_bytes(
        pkcs12.serialize_java_truststore([trusted], BestAvailableEncryption(b"testing"))
    )
    options = {"": store, "Password": "testing", "Type": "PKCS12"}
    return [f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in options.items()]


def test_it_puts_subscribes_reshards_and_polls(
    read: Callable[[], dict[str, list[list[str]]]],
    server: KinesisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with calls(caplog) as made:
        seen = read()
    assert made == calls_of("SDK for Java v2")
    assert_all_is_read(seen)
    assert seen["refused"] == [["ResourceNotFoundException"], ["InvalidArgumentException"]]
    assert {shard for (shard,) in seen["ended"]} == {FIRST, SECOND, THIRD}
    assert len(seen["subscribed"]) == 6
    # A poll returns the very same records.
    assert seen["polled"] == [words for words in seen["read"] if words[0] == FIRST]
    assert {words[-1] for words in seen["read"]} == {"now"}
    assert "failed" not in seen
    assert server.statistics().violations == {}


def assert_all_is_read(seen: dict[str, list[list[str]]]) -> None:
    """Each record once, and those of a shard in the order of their numbers."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for shard, number, key, value, _ in seen["read"]:
        assert key == f"key-{value}"
        numbers[shard].append(int(number))
    assert all(each == sorted(each) for each in numbers.values())
    values = [int(value) for *_, value, _ in seen["read"]]
    assert sorted(values) == list(range(RECORDS))
    assert sum(int(count) for (count,) in seen["put"]) == RECORDS
