"""A Spark driver in a process of its own, which can be stopped and killed: its end of the link.

`SparkJob` starts drivers and reads their messages. Options are the driver's one argument, as JSON.
Messages are lines of JSON on its stdout. Its stdin carries nothing: it closes to stop the driver,
and when its parent dies.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, TypeAlias, TypeVar, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError

if TYPE_CHECKING:
    from collections.abc import Callable

_STDIN = 0


@final
class DriverStarted(msgspec.Struct, frozen=True, tag=True):
    """The driver's queries run."""

    jvm_pid: int  # of Spark's JVM, which outlives a killed driver by a moment


@final
class DriverFailed(msgspec.Struct, frozen=True, tag=True):
    """The driver has ended by an error."""

    error: str  # the name of its class
    sentence: str


Message: TypeAlias = DriverStarted | DriverFailed
"""The messages of every driver; a driver may have more."""

M = TypeVar("M")


def decode_message(line: bytes, decoder: msgspec.json.Decoder[M]) -> M | None:
    """Return the message in a line; None if the JVM, which has the same stdout, printed it."""
    try:
        return decoder.decode(line)
    except MALFORMED_JSON:
        return None


@final
class DriverLink:
    """The driver's end: it sends messages, and learns when to stop."""

    # `stopping` is set when the driver is to end, or its parent has died.

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, from any thread."""
        with self._sending:
            sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
            sys.stdout.buffer.flush()


def run_driver(main: Callable[[DriverLink], None]) -> int:
    """Run the queries of a driver until `DriverLink.stopping` is set; return the exit code.

    The error by which they end is sent; a FanOutError exits with 1.
    """
    link = DriverLink()

    def await_stop() -> None:
        # Below sys.stdin, whose lock a thread that still reads would hold when Python ends.
        while os.read(_STDIN, 1024):
            pass
        link.stopping.set()

    threading.Thread(target=await_stop, daemon=True).start()
    try:
        main(link)
    except FanOutError as error:
        link.send(DriverFailed(type(error).__name__, str(error)))
        return 1
    return 0
