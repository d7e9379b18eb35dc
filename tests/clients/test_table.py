from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import boto3

from tests.clients.table import table
from tests.support.pages import page


def test_each_client_has_a_test() -> None:
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    clients = table()
    assert len(clients) == 8
    assert [client for client in clients if f'"{client}"' not in tests] == []


def test_each_operation_is_called_or_said_not_to_be() -> None:
    (missing,) = re.findall(r"No client here calls (.*?)\.", page("testing.md"), re.DOTALL)
    there = {operation for operations in table().values() for operation in operations}
    # Another test may have extended the model of the default session.
    session = boto3.session.Session(region_name="us-east-1")
    with closing(session.client("kinesis")) as client:
        known = set(client.meta.service_model.operation_names)
    assert there | set(re.findall(r"`(\w+)`", missing)) == known
