"""A plugin of pytest: the event loops of tests, and of what they run here, are those of uvloop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


@pytest.fixture(scope="session")
def event_loop_policy() -> uvloop.EventLoopPolicy:
    """The policy by which pytest-asyncio makes loops."""
    return uvloop.EventLoopPolicy()
