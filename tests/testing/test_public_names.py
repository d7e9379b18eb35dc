from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fanout.testing

HEAVY = {"aioboto3", "boto3", "confluent_kafka", "moto", "pyspark", "aiokafka"}


def run(code: str) -> str:
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return answer.stdout


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import json, sys, fanout.testing; print(json.dumps(sorted(sys.modules)))"
    assert HEAVY.isdisjoint(json.loads(run(code)))


def test_what_needs_no_server_loads_none() -> None:
    code = (
        "import json, sys; from fanout.testing import CutConnection, KinesisRules, fast, simulate;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert HEAVY.isdisjoint(json.loads(run(code)))


def test_each_public_name_is_there_and_listed() -> None:
    assert set(fanout.testing.__all__) <= set(dir(fanout.testing))
    for name in fanout.testing.__all__:
        assert getattr(fanout.testing, name) is getattr(fanout.testing, name)
    assert callable(fanout.testing.fast)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fanout.testing.nothing


def test_a_server_without_its_library_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['moto'] = None\n"
        "from fanout.errors import SetupError\n"
        "try:\n from fanout.testing import KinesisServer\n"
        "except SetupError as error:\n print(error)"
    )
    assert run(code).startswith("the embedded Kinesis needs moto, which is")
