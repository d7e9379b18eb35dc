"""docs/examples/kinesis_to_sqlite.py: run, and killed at each step of a transaction."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from tests.examples.harness import Example
from tests.examples.waves import last_of_each_key, put_wave, sent
from tests.support.doomed import Kill

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

KILLS = (
    # With rows in the open transaction, and without the positions after them.
    Kill("tests.support.doomed:SqliteConnection.executemany", "after"),
    Kill("tests.support.doomed:SqliteConnection.commit_or_roll_back", "before"),
    Kill("fanout.core.fan_out:FanOut.acknowledge", "before"),
    Kill("fanout.core.fan_out:FanOut.acknowledge", "after"),
)


@pytest.fixture
def example(kinesis_server: KinesisServer, tmp_path: Path) -> Example:
    kinesis_server.create_stream("orders", 2)
    return Example("kinesis_to_sqlite.py", tmp_path, kinesis_server.environment)


def stored(directory: Path) -> list[bytes]:
    database = sqlite3.connect(directory / "orders.db")
    try:
        return sorted(data for (data,) in database.execute("SELECT data FROM orders"))
    except sqlite3.OperationalError:  # no table yet
        return []
    finally:
        database.close()


@pytest.mark.long
def test_the_example_stores_what_was_put(
    kinesis_server: KinesisServer, example: Example, tmp_path: Path
) -> None:
    put_wave(kinesis_server, 0)
    example.run_until(lambda: stored(tmp_path) == sent(1))


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_kills_lose_and_repeat_nothing(
    kinesis_server: KinesisServer, example: Example, tmp_path: Path
) -> None:
    for number, kill in enumerate(KILLS):
        put_wave(kinesis_server, number)
        example.run_and_kill(kill)
    put_wave(kinesis_server, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest.issubset(stored(tmp_path)))
    assert stored(tmp_path) == sent(len(KILLS) + 1)
