"""A `decode` that changes nothing, and kills the process that it is sent to at a moment, once."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from tests.support.doomed import Kill


@dataclass(frozen=True)
class Armed:
    """Does nothing here; see the module.

    Args:
        kill: The moment.
        mark: A file that is made by the process that is killed: no other one is.
        decode: What decodes the records; None leaves them as they are.
    """

    kill: Kill
    mark: Path
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return records if self.decode is None else self.decode(records)

    def __reduce__(self) -> tuple[Any, ...]:
        return arm, (self.kill, self.mark, self.decode)


def arm(
    kill: Kill, mark: Path, decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> Armed:
    """Wrap the method in this process."""
    module, _, path = kill.where.partition(":")
    class_name, _, name = path.partition(".")
    owner = getattr(importlib.import_module(module), class_name)
    method = getattr(owner, name)
    calls = itertools.count(1)

    def die() -> None:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(method)
    def sync(*arguments: Any, **named: Any) -> Any:
        now = next(calls) == kill.call
        if now and kill.when == "before":
            die()
        answer = method(*arguments, **named)
        if now and kill.when == "after":
            die()
        return answer

    @functools.wraps(method)
    async def coroutine(*arguments: Any, **named: Any) -> Any:
        now = next(calls) == kill.call
        if now and kill.when == "before":
            die()
        answer = await method(*arguments, **named)
        if now and kill.when == "after":
            die()
        return answer

    setattr(owner, name, coroutine if inspect.iscoroutinefunction(method) else sync)
    return Armed(kill, mark, decode)
