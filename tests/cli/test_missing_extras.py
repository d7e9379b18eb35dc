"""A command without its library: one sentence names the extra, and the exit code is 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

CODE = """
import sys
for name in "aioboto3 aiobotocore boto3 botocore aiokafka confluent_kafka moto pyspark".split():
    sys.modules[name] = None
from fanout.cli.app import app
app(sys.argv[1:], prog_name="fanout")
"""
# It has a commit token, so that the cluster has to be called.
CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "version_0_1" / "sink"
BROKER = ("--bootstrap-servers", "127.0.0.1:1", "--protocol", "PLAINTEXT")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("doctor", "orders", "--region", "us-east-1"), "kinesis"),
        (("tail", "kinesis://orders", "--region", "us-east-1"), "kinesis"),
        (("tail", "kafka://orders", *BROKER), "kafka"),
        (("consumers", "list", "orders", "--region", "us-east-1"), "kinesis"),
        (("share", "describe", "group", *BROKER), "kafka"),
        (("kinesis-server", "--port", "0"), "testing"),
        (("kafka-broker", "--port", "0"), "testing"),
        (("shuffle", "describe", "topic", *BROKER), "kafka"),
        (("transactions", "list", "--checkpoint", str(CHECKPOINT), *BROKER[:2]), "kafka"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_the_extra_is_named(command: tuple[str, ...], extra: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", CODE, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"pip install 'fanout-streams[{extra}" in done.stderr


@pytest.mark.parametrize(
    "library", ["prometheus_client", "opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"]
)
def test_the_extra_of_a_port_for_metrics_is_named(library: str) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
from fanout.cli.app import app
app("land kinesis://orders to --region us-east-1 --metrics-port 127.0.0.1:0".split())
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    extra = "otel" if library == "opentelemetry" else "prometheus"
    assert done.stderr == (
        f"fanout land: it needs {library}, which is not installed: "
        f"pip install 'fanout-streams[{extra}]'\n"
    )
