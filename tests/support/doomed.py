"""Run an example in this process, and kill it, with Spark's JVM, at a moment that is certain.

The example knows nothing of this: the function that names the moment is wrapped from outside.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import runpy
import signal
import sqlite3
import sys
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from fanout.spark.query.batch_runner import Handler

__all__ = ("Kill", "SqliteConnection", "main", "wrap")


@final
class Kill(msgspec.Struct, frozen=True):
    """The moment of a kill.

    Args:
        where: A method, as `"module:Class.method"`.
        when: Before or after a call of the method. Or in the job that reads the DataFrame of a
            handler; the method is then `BatchRunner._handle`.
        call: Which call of the method in this process, from 1.
    """

    where: str
    when: Literal["before", "after", "in job"]
    call: int = 1


class SqliteConnection(sqlite3.Connection):
    """A connection whose methods can be wrapped; those of sqlite3 itself cannot."""

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        return super().executemany(*arguments)

    def commit_or_roll_back(self, *arguments: Any) -> Literal[False]:
        return super().__exit__(*arguments)

    def __exit__(self, *arguments: object) -> Literal[False]:
        return self.commit_or_roll_back(*arguments)


def main() -> None:
    """Run an example. The arguments are the Kill as JSON and the path of the example."""
    connect = functools.partial(sqlite3.connect, factory=SqliteConnection)
    sqlite3.connect = connect  # type: ignore[assignment]  # it is overloaded
    wrap(msgspec.json.decode(sys.argv[1], type=Kill))
    runpy.run_path(sys.argv[2], run_name="__main__")


def _die(group: int) -> NoReturn:
    os.killpg(group, signal.SIGKILL)
    signal.pause()
    raise AssertionError("the process group outlived SIGKILL")


def wrap(kill: Kill) -> None:
    """Let this process and its group be killed at a moment."""
    module, _, path = kill.where.partition(":")
    class_name, _, name = path.partition(".")
    owner = getattr(importlib.import_module(module), class_name)
    method = getattr(owner, name)
    group = os.getpgid(0)
    calls = itertools.count(1)

    def before(arguments: tuple[Any, ...]) -> bool:
        """Return whether this is the call that is meant; not if it is killed before the call."""
        if next(calls) != kill.call:
            return False
        if kill.when == "before":
            _die(group)
        if kill.when == "in job":
            runner = arguments[0]
            runner._handler = _deadly(runner._handler, group)
        return kill.when == "after"

    @functools.wraps(method)
    def sync(*arguments: Any, **named: Any) -> Any:
        kill_after = before(arguments)
        answer = method(*arguments, **named)
        if kill_after:
            _die(group)
        return answer

    @functools.wraps(method)
    async def coroutine(*arguments: Any, **named: Any) -> Any:
        kill_after = before(arguments)
        answer = await method(*arguments, **named)
        if kill_after:
            _die(group)
        return answer

    setattr(owner, name, coroutine if inspect.iscoroutinefunction(method) else sync)


def _deadly(handler: Handler, group: int) -> Handler:
    """Return the handler with DataFrames whose last row is followed by a kill."""

    def deadly(frame: DataFrame, batch_id: int) -> None:
        kill_after_rows = functools.partial(_kill_after_rows, group)
        handler(frame.mapInArrow(kill_after_rows, frame.schema), batch_id)

    return deadly


def _kill_after_rows(group: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    _die(group)


if __name__ == "__main__":
    # So that wrapped classes are those that other modules import.
    from tests.support.doomed import main as run

    run()
