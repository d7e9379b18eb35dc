from __future__ import annotations

import pytest

from tests.support.groups import KAFKA_COMMANDS, group_folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_folder(__file__, items, KAFKA_COMMANDS)
