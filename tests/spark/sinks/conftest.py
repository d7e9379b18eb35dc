from __future__ import annotations

import pytest

from tests.support.groups import SPARK_TABLES, group_folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_folder(__file__, items, SPARK_TABLES)
