"""The watch over connections tells the right one that its client has gone."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fanout.testing.hang_up_watch import HangUpWatch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def watch() -> Iterator[HangUpWatch]:
    with closing(HangUpWatch("fanout-test-watch")) as found:
        yield found


def test_it_tells_once_that_a_client_hung_up(watch: HangUpWatch) -> None:
    server, client = socket.socketpair()
    gone = threading.Event()
    with server:
        watch.on_gone(server, gone.set)
        client.close()
        assert gone.wait(30)


def test_it_hangs_up_when_the_time_of_a_client_is_over(watch: HangUpWatch) -> None:
    server, client = socket.socketpair()
    with server, client:
        watch.hang_up_at(server, 0.0)
        client.settimeout(30)
        assert client.recv(1) == b""


def test_a_descriptor_that_another_connection_has_now_tells_it_nothing(
    watch: HangUpWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    first, first_client = socket.socketpair()
    second, second_client = socket.socketpair()
    poll = select.poll()
    # This thread is the watch's.
    monkeypatch.setattr(watch, "_thread", threading.current_thread())
    watch.on_gone(first, lambda: told.append("first"))
    watch._update(poll)
    first_client.close()
    ready = {number for number, _ in poll.poll(0)}
    watch.on_gone(first, None)
    number = first.fileno()
    first.close()
    os.dup2(second.fileno(), number)
    with second, second_client, socket.socket(fileno=number) as reused:
        watch.on_gone(reused, lambda: told.append("second"))
        watch._tell(ready)
        assert (ready, told) == ({number}, [])
        second_client.close()
        watch._update(poll)
        watch._tell({found for found, _ in poll.poll(0)})
        assert told == ["second"]
