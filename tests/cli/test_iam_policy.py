from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.kinesis import iam_policy

STREAM = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER = f"{STREAM}/consumer/etl:1"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([STREAM], iam_policy(STREAM)),
        ([STREAM, CONSUMER], iam_policy(STREAM, CONSUMER)),
        ([STREAM, CONSUMER, "--deploy"], iam_policy(STREAM, CONSUMER, deploy=True)),
        ([STREAM, "--polling"], iam_policy(STREAM, mode="polling")),
        ([STREAM, "--write"], iam_policy(STREAM, mode="write")),
        ([STREAM, "--kms-key-arn", KEY], iam_policy(STREAM, kms_key_arn=KEY)),
    ],
    ids=["stream", "consumer", "deploy", "polling", "write", "key"],
)
def test_the_policy_is_printed_as_json(arguments: list[str], expected: object) -> None:
    result = CliRunner().invoke(app, ["iam-policy", *arguments])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == expected


def test_what_is_no_arn_is_one_line_on_stderr_and_exits_with_2() -> None:
    result = CliRunner().invoke(app, ["iam-policy", "orders"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("fanout iam-policy: STREAM_ARN 'orders' is not the ARN of a st")
    assert result.stderr.count("\n") == 1
