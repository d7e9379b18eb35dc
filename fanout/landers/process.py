"""A process that lands for the one that has started it, and ends with it.

It is told on its input what to do, and tells on its output what it logs.
"""

from __future__ import annotations

import logging
import os
import pickle  # noqa: TID251 - what a parent process sends its child comes from inside
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final, final

import msgspec

from fanout.core.error_text import first_error, text_of
from fanout.core.remote_error import sendable

if TYPE_CHECKING:
    from typing import NoReturn

    from fanout.landers.task import LanderTask

START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from fanout.landers.process import main; main()"
)
"""What Python runs in the process. Its input is a line with `sys.path`, then an `Order`."""


@final
class LogLine(msgspec.Struct, frozen=True, tag="log"):
    """Something that the process logs."""

    level: int
    logger: str
    text: str


@final
class CannotBegin(msgspec.Struct, frozen=True, tag="cannot begin"):
    """Why the process cannot read what it was sent; it ends."""

    text: str


@final
class Order(msgspec.Struct, frozen=True):
    """What the process does."""

    task: bytes  # a LanderTask, pickled
    lander: int
    attempt: int
    level: int  # from which level on it tells what it logs


def main() -> None:
    """Land until the coordinator says stop, or the process that has started this one is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the other process gets it too, and ends this one
    told = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed is no message
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    logging.basicConfig(level=order.level, handlers=[_Telling(told)], format="%(message)s")
    threading.Thread(target=_end_with_the_other, name="fanout parent", daemon=True).start()
    try:
        work: LanderTask = pickle.loads(order.task)  # noqa: S301 - of the process that has started this one
    except Exception as error:  # noqa: BLE001 - modules of the user are imported
        _tell(told, CannotBegin(sendable(text_of(error))))
        sys.exit(1)
    try:
        work(order.lander, order.attempt)
    except Exception as error:  # noqa: BLE001 - it is told
        log = logging.getLogger(__name__)
        log.error("%s", text_of(first_error(error)))  # noqa: TRY400 - a value may be in the trace
        sys.exit(1)


def _end_with_the_other() -> NoReturn:
    """Wait until the input ends, which the other process holds open as long as it lives."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


@final
class _Telling(logging.Handler):
    """Tell the other process what is logged here."""

    def __init__(self, told: BinaryIO) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of a record."""
        _tell(self._told, LogLine(record.levelno, record.name, sendable(self.format(record))))


def _tell(told: BinaryIO, line: LogLine | CannotBegin) -> None:
    with suppress(OSError):  # the other process is gone
        told.write(msgspec.json.encode(line) + b"\n")
