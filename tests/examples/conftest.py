from __future__ import annotations

import pytest

from tests.support.groups import of_folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in of_folder(__file__, items):
        item.add_marker("alone")
