"""pytest fixtures for users' offline tests. Importing this module imports no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.kinesis_server import KinesisServer

__all__ = ("kinesis_server",)


@pytest.fixture
def kinesis_server() -> Iterator[KinesisServer]:
    """Run an embedded Kinesis in this process for one test, with `KinesisRules.fast()`.

    Yields:
        The running server; `server.client_options` and `server.environment` lead clients to it.
    """
    # The server imports moto, which pytest runs without this fixture should not pay for.
    from fanout.testing.kinesis_server import KinesisServer  # noqa: PLC0415 (see above)
    from fanout.testing.rules import KinesisRules  # noqa: PLC0415 (see above)

    with KinesisServer(KinesisRules.fast()) as server:
        yield server
