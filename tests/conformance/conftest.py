"""Test the behaviour of Kinesis that the library relies on, embedded or on a real stream.

`make test` runs them against the embedded Kinesis with its quick figures, and so holds it to the
same facts. `make live STREAM=name-or-arn` runs the very same tests against AWS, with the
credentials and the region of the machine; nothing else can, as only the option `--live-stream`
names a stream.

At AWS they register two consumers with names of their own, put records under partition keys of
their own, read them, and deregister the consumers, on failure and on Ctrl-C too. They never create,
reshard, change or delete anything else. Other producers may write to the stream at the same time.

Only the real service can show: whether a takeover and a refusal keep to the five seconds that
the documentation names, the end of a subscription after five minutes, heartbeats (documented
nowhere), how far the clock of the Date header is from the one that stamps records, the form of
continuations and of the errors, that your credentials are found and renewed and IAM allows what
`fanout.kinesis.iam_policy` lists, and the use of the key of an encrypted stream, if it is one.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from fanout.errors import FanOutError
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.testing.kinesis.rules import KinesisRules
from tests.conformance.service import at_aws, embedded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fanout.kinesis.aws.api import KinesisClient
    from tests.conformance.service import Service

_PREFIX = "fanout-conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the stream on the command line alone: no environment makes a run live."""
    parser.addoption("--live-stream", help="name or ARN of a stream at AWS to test against")
    parser.addoption(
        "--automatic-stream", help="one with RecordDistributionStrategy AUTO, and perhaps 10 MiB"
    )
    parser.addoption("--live-queue", help="a queue that nobody else reads, as STREAM/QUEUE")
    parser.addoption(
        "--consumer-prefix", default=_PREFIX, help="what our consumers and keys begin with"
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what a live run will do, before it does anything."""
    stream, prefix = config.getoption("--live-stream"), config.getoption("--consumer-prefix")
    automatic = config.getoption("--automatic-stream")
    queue = config.getoption("--live-queue")
    others = [f"  puts 21 small records and a large one into {automatic}"] if automatic else []
    others += (
        [f"  puts 50 small records, and reads all that is in the queue {queue}"] if queue else []
    )
    if stream is None:
        return ["conformance: against the embedded server; `make live STREAM=...` for AWS"]
    return [
        f"conformance: at AWS, with your credentials, for about eight minutes; stream {stream}",
        f"  registers two consumers, {prefix}-..., and deregisters them at the end, no other",
        f"  puts some 40 small records and one of 1 MiB, under partition keys {prefix}-...",
        *others,
        "  creates, reshards, changes and deletes nothing else",
        "  costs roughly $0.03 for each shard of the stream: two consumers at $0.015 for a shard",
        "  and hour (list price of us-east-1); the records cost less than a cent",
    ]


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest) -> Iterator[Service | None]:
    """The stream at AWS and our consumer, for the whole run; None without `--live-stream`."""
    stream = request.config.getoption("--live-stream", default=None)
    if stream is None:
        yield None
        return
    with ExitStack() as stack:
        try:
            service = stack.enter_context(
                at_aws(stream, request.config.getoption("--consumer-prefix"))
            )
        except (BotoCoreError, ClientError, FanOutError) as error:
            pytest.exit(f"the stream {stream} cannot be tested: {error}", returncode=2)
        yield service


@pytest.fixture
def rules() -> KinesisRules:
    """The figures of the embedded server; parametrize `rules` for others. AWS has its own."""
    return KinesisRules.fast()


@pytest.fixture
def service(live: Service | None, rules: KinesisRules) -> Iterator[Service]:
    """The service under test."""
    if live is not None:
        yield live
        return
    with embedded(rules, _PREFIX) as service:
        yield service


@pytest.fixture
async def kinesis(service: Service) -> AsyncIterator[KinesisClient]:
    """The library's own calls."""
    async with open_kinesis_client(stream=service.stream, **service.where) as kinesis:
        yield kinesis
