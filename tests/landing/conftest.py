"""Servers of S3, with an empty bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.s3 import S3_SERVERS
from tests.support.s3 import moto as moto  # noqa: PLC0414 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def s3mock(jars: Callable[[str], list[Path]]) -> Iterator[str]:
    from tests.landing.s3mock import serve_s3mock  # noqa: PLC0415 - it imports pyspark

    (jar,) = jars("s3mock")
    with serve_s3mock(jar) as endpoint:
        yield endpoint


@pytest.fixture(scope="module", params=S3_SERVERS)
def endpoint(request: pytest.FixtureRequest) -> str:
    """The endpoint of each server."""
    found: str = request.getfixturevalue(request.param)
    return found
