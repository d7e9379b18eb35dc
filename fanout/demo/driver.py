"""A Spark driver of the demo: `python -m fanout.demo.driver OPTIONS`, a process to be killed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fanout.demo.handlers import DoomedHandler, make_write
from fanout.demo.messages import DriverOptions, Failed, Message, Reading, Resubscribed, Started
from fanout.demo.sources import make_source
from fanout.demo.workspace import Workspace
from fanout.errors import FanOutError
from fanout.spark import foreach_batch
from fanout.testing.spark.session import jvm_pid, short_lived_session

if TYPE_CHECKING:
    from fanout.core.events import Split
    from fanout.spark import FanOutQuery

__all__ = ("main",)

_STDIN = 0

_REPORT_EVERY = 0.25

# None says that the demo wants the driver to stop. The main thread alone takes and prints.
_Outbox: TypeAlias = "SimpleQueue[Message | None]"


def main(arguments: str) -> int:
    """Run the query until stdin closes; print messages to stdout.

    Args:
        arguments: DriverOptions as JSON.

    Returns:
        The exit code: 1 if the query has failed.
    """
    options = msgspec.json.decode(arguments, type=DriverOptions)
    workspace = Workspace(Path(options.root))
    outbox: _Outbox = SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_await_stop, args=(outbox, stopping), daemon=True).start()

    def on_resubscribe(split: Split, cause: Exception, delay: float) -> None:
        outbox.put(Resubscribed(split.id, type(cause).__name__, delay))

    try:
        with short_lived_session("fanout demo", workspace.scratch) as spark:
            write = make_write(options, workspace)
            query = foreach_batch(
                spark,
                make_source(options.source),
                DoomedHandler(write, options.kill, outbox.put, stopping),
                checkpoint_location=str(workspace.checkpoint(options.query)),
                max_records=options.max_records,
                on_resubscribe=on_resubscribe,
            )
            _send(Started(jvm_pid(spark)))
            _report(query, outbox)
    except FanOutError as error:
        _send(Failed(str(error)))
        return 1
    return 0


def _await_stop(outbox: _Outbox, stopping: threading.Event) -> None:
    # Below sys.stdin, whose lock a thread that still reads would hold when the interpreter ends.
    while os.read(_STDIN, 1024):
        pass
    stopping.set()
    outbox.put(None)


def _report(query: FanOutQuery, outbox: _Outbox) -> None:
    """Print what happens until the demo wants no more, then stop the query.

    Raises:
        FanOutError: If the query has failed.
    """
    wanted = True
    while wanted and query.is_active:
        _send(Reading(tuple(query.statistics().splits)))
        try:
            message = outbox.get(timeout=_REPORT_EVERY)
        except Empty:
            continue
        if message is None:
            wanted = False
        else:
            _send(message)
    query.stop()
    while not outbox.empty():
        if (message := outbox.get()) is not None:
            _send(message)
    query.await_termination()


def _send(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
