"""Watch the connections of requests over HTTP/1.1 whose threads wait for something else."""

from __future__ import annotations

import select
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanout.testing.caller import hang_up
from fanout.testing.waker import Waker

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


@dataclass(slots=True)
class _Watched:
    connection: socket.socket
    on_gone: Callable[[], None] | None = None
    deadline: float | None = None


class HangUpWatch:
    """Tell when clients hang up, and hang up on clients whose time is over, in one thread."""

    # The thread starts with the first connection.

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        # Descriptors that the thread has to look at again, and whose they were when it last looked:
        # a descriptor that was closed is soon that of another connection.
        self._changed: set[int] = set()
        self._polled: dict[int, _Watched] = {}
        self._waker = Waker()
        self._thread: threading.Thread | None = None
        self._closed = False

    def on_gone(self, connection: socket.socket, callback: Callable[[], None] | None) -> None:
        """Call back once, in the thread, when the client sends something or hangs up."""
        with self._lock:
            self._entry(connection).on_gone = callback
            self._note(connection)

    def hang_up_at(self, connection: socket.socket, deadline: float | None) -> None:
        """Hang up on the client at a time of the monotonic clock, unless this is called again."""
        with self._lock:
            self._entry(connection).deadline = deadline
            self._note(connection)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._waker.wake()
        if thread is not None:
            thread.join()
        self._waker.close()

    def _entry(self, connection: socket.socket) -> _Watched:
        number = connection.fileno()
        found = self._watched.get(number)
        if found is None or found.connection is not connection:
            found = self._watched[number] = _Watched(connection)
        return found

    def _note(self, connection: socket.socket) -> None:
        number = connection.fileno()
        entry = self._watched[number]
        if entry.on_gone is None and entry.deadline is None:
            del self._watched[number]
        self._changed.add(number)
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._waker.wake()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        while True:
            with self._lock:
                if self._closed:
                    return
                seconds = self._update(poll)
            ready = {number for number, _ in poll.poll(seconds and seconds * 1000)}
            if self._waker.fileno() in ready:
                self._waker.clear()
            self._tell(ready)

    def _update(self, poll: select.poll) -> float | None:
        """Register what has changed; return the seconds until the next deadline."""
        while self._changed:
            number = self._changed.pop()
            entry = self._watched.get(number)
            poll.register(number, select.POLLIN)
            if entry is None or entry.on_gone is None:
                # One that has hung up would be ready for ever.
                poll.unregister(number)
                self._polled.pop(number, None)
            else:
                self._polled[number] = entry
        deadlines = [each.deadline for each in self._watched.values() if each.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _tell(self, ready: set[int]) -> None:
        now = time.monotonic()
        callbacks = []
        with self._lock:
            for number, entry in self._watched.items():
                told = number in ready and self._polled.get(number) is entry
                if told and entry.on_gone is not None:
                    callbacks.append(entry.on_gone)
                    entry.on_gone = None
                    self._changed.add(number)
                if entry.deadline is not None and entry.deadline <= now:
                    hang_up(entry.connection)
                    entry.deadline = None
        # One may wait for a lock of its own.
        for callback in callbacks:
            callback()
