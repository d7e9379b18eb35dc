"""`make live` as a user runs it, with an embedded server in the place of AWS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from fanout.testing.kinesis.api_model import extend_model
from fanout.testing.kinesis.process import KinesisProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.prove

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def aws() -> Iterator[KinesisProcess]:
    """An embedded server with the service's own figures."""
    with KinesisProcess() as server:
        yield server


@pytest.fixture(scope="module")
def client(aws: KinesisProcess) -> Iterator[Any]:
    with closing(boto3.client("kinesis", **aws.client_options)) as client:
        yield client


def start(server: KinesisProcess, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own tests
        [sys.executable, "-m", "pytest", "tests/conformance", "-v", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | server.environment,
    )


def run(server: KinesisProcess, *arguments: str) -> tuple[int, str]:
    """Run the conformance tests to their end; return the exit code and what they printed."""
    with start(server, *arguments) as process:
        output, _ = process.communicate()
    return process.returncode, output


def consumers(client: Any, arn: str) -> list[str]:
    return [
        consumer["ConsumerName"]
        for consumer in client.list_stream_consumers(StreamARN=arn)["Consumers"]
    ]


def test_without_a_stream_one_sentence_says_how_to_name_one() -> None:
    done = subprocess.run(
        ["make", "--silent", "live", "STREAM="],  # noqa: S607 - the make on the PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("name a stream of yours: make live STREAM=")


def test_a_live_run_tests_what_an_account_has(aws: KinesisProcess, client: Any) -> None:
    arn = aws.create_stream("one", shards=1)
    tests = ("--live-stream", arn, "-k", "test_automatic", "-rs")
    code, output = run(aws, *tests)
    assert code == 0, output
    assert "no stream with RecordDistributionStrategy AUTO is named: AUTOMATIC=name" in output
    _, output = run(aws, *tests, "--automatic-stream", "one")
    assert "one has not the RecordDistributionStrategy AUTO" in output
    assert "one has the MaxRecordSizeInKiB of every new stream, 1 MiB" in output
    extend_model(client.meta.service_model)
    mode = {"StreamMode": "ON_DEMAND"}
    settings = {"RecordDistributionStrategy": "AUTO", "MaxRecordSizeInKiB": 10240}
    client.create_stream(StreamName="automatic", StreamModeDetails=mode, **settings)
    code, output = run(aws, *tests, "--automatic-stream", "automatic")
    assert code == 0, output
    assert "2 passed" in output


def test_a_live_run_tests_a_queue(aws: KinesisProcess, client: Any) -> None:
    arn = aws.create_stream("lent", shards=1)
    tests = ("--live-stream", arn, "-k", "test_queue", "-rs")
    code, output = run(aws, *tests)
    assert code == 0, output
    assert "no queue is named that nobody else reads: QUEUE=stream/queue" in output
    extend_model(client.meta.service_model)
    client.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    start = {"StreamARN": arn, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    created = {"QueueName": "work", "StreamConfigurationList": [start]}
    described = client._make_api_call("CreateQueue", created)["QueueDescription"]
    while described["QueueStatus"] != "ACTIVE":
        asked = {"QueueARN": described["QueueARN"]}
        described = client._make_api_call("DescribeQueue", asked)["QueueDescription"]
    code, output = run(aws, *tests, "--live-queue", "lent/work")
    assert code == 0, output
    assert "2 passed" in output


def test_a_live_run_leaves_the_consumers_that_it_found(aws: KinesisProcess, client: Any) -> None:
    arn = aws.create_stream("shared", shards=2)
    client.register_stream_consumer(StreamARN=arn, ConsumerName="etl")
    only = "initial_response or listed_and_deregistered"
    code, output = run(aws, "--live-stream", arn, "-k", only)
    assert code == 0, output
    assert "registers two consumers, fanout-conformance-" in output
    assert "2 passed" in output
    assert consumers(client, arn) == ["etl"]


def test_an_interrupted_live_run_deregisters_its_consumer(aws: KinesisProcess, client: Any) -> None:
    arn = aws.create_stream("interrupted")
    arguments = ("--live-stream", "interrupted", "--consumer-prefix", "ours", "-m", "slow")
    before = aws.statistics()
    with start(aws, *arguments) as process:
        while aws.statistics().subscribe_calls == before.subscribe_calls:
            assert process.poll() is None
            time.sleep(0.05)
        assert [name.partition("-")[0] for name in consumers(client, arn)] == ["ours"]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert consumers(client, arn) == []


def test_a_failed_live_run_deregisters_its_consumer(aws: KinesisProcess, client: Any) -> None:
    arn = aws.create_stream("failed")
    too_short = ("--timeout", "1", "-o", "timeout_func_only=true")  # a heartbeat takes 5 s
    code, output = run(aws, "--live-stream", "failed", "-k", "never_silent", *too_short)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "1 failed" in output
    assert consumers(client, arn) == []


def test_a_stream_that_does_not_exist_ends_the_run_with_one_sentence(aws: KinesisProcess) -> None:
    code, output = run(aws, "--live-stream", "nowhere")
    assert code == 2
    assert "the stream nowhere cannot be tested: An error occurred (ResourceNotFound" in output


def test_without_the_option_nothing_reaches_aws(aws: KinesisProcess, client: Any) -> None:
    arn = aws.create_stream("conformance")
    before = aws.statistics()
    code, output = run(aws, "-k", "initial_response")
    assert code == 0, output
    assert aws.statistics().subscribe_calls == before.subscribe_calls
    assert consumers(client, arn) == []
