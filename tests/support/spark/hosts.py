"""Hosts with addresses of their own on this machine, and links between them that can be bad.

A host is a network namespace: it ends with its last process, and all of its devices with it. A link
carries frames between two taps, one in each host, so that it can be cut, slow or lossy without a
kernel that has netem.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("HERE", "Host", "Link", "Network", "network")

_Result = TypeVar("_Result")

# RFC 2544 keeps these addresses for tests of networks. Each network is apart from all others.
_ADDRESS: Final = "198.18.0.{}"
_DEVICE: Final = "spark"
_FRAME: Final = 65_536
# See linux/if_tun.h and linux/sched.h.
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET: Final = 0x40000000


@final
@dataclass(frozen=True, slots=True)
class Host:
    """Where processes run: a network namespace, or this machine as it is.

    Args:
        address: The host's address.
        namespace: The file of its namespace; None for this machine.
    """

    address: str
    namespace: Path | None = None

    def command(self, *words: str) -> tuple[str, ...]:
        """Return the command that runs another one on this host, as the same process."""
        return words if self.namespace is None else ("nsenter", f"--net={self.namespace}", *words)

    def has(self, process: int) -> bool:
        """Say whether a process runs on this host."""
        assert self.namespace is not None
        return Path(f"/proc/{process}/ns/net").samefile(self.namespace)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function whose sockets and devices are those of this host."""

        def inside() -> _Result:
            assert self.namespace is not None
            with self.namespace.open("rb") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as thread:  # a namespace belongs to a thread
            return thread.submit(inside).result()


HERE: Final = Host("127.0.0.1")


@final
class Link:
    """Carry frames between two taps until it is closed.

    Args:
        ends: The files of the taps.
        random: Draws the frames that are lost.

    Attributes:
        is_cut: Whether nothing passes, in neither direction.
        delay: Seconds that each frame takes.
        loss: The part of the frames that are lost.
        on_drop: Is called with each frame that does not pass, in the link's thread.
    """

    def __init__(self, ends: tuple[int, int], random: Random) -> None:
        self.is_cut = False
        self.delay = 0.0
        self.loss = 0.0
        self.on_drop: Callable[[bytes], object] = lambda _: None
        self._ends = ends
        self._random = random
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the link, and its taps with it."""
        os.write(self._stopped, b".")
        self._thread.join()
        for file in (*self._ends, self._stop, self._stopped):
            os.close(file)

    def _carry(self) -> None:
        one, other = self._ends
        across = {one: other, other: one}
        under_way: list[tuple[float, int, int, bytes]] = []
        carried = 0
        while True:
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            readable, _, _ = select.select([*across, self._stop], [], [], wait)
            if self._stop in readable:
                return
            for end in readable:
                frame = os.read(end, _FRAME)
                carried += 1
                if self._random.random() < self.loss:
                    self.on_drop(frame)
                    continue
                due = time.monotonic() + self.delay
                heapq.heappush(under_way, (due, carried, across[end], frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, end, frame = heapq.heappop(under_way)
                if self.is_cut:
                    self.on_drop(frame)
                    continue
                with suppress(OSError):  # the host has just ended
                    os.write(end, frame)


@final
@dataclass(frozen=True, slots=True)
class Network:
    """A host for the driver, others for workers, and the link of each of them to the driver's.

    Args:
        driver: The host of Spark's master and of the driver.
        workers: The hosts of the workers.
        links: The link of each worker's host.
    """

    driver: Host
    workers: tuple[Host, ...]
    links: tuple[Link, ...]

    def link_of(self, process: int) -> Link:
        """Return the link of the host on which a process runs."""
        (found,) = (
            link for host, link in zip(self.workers, self.links, strict=True) if host.has(process)
        )
        return found


@contextmanager
def network(*, workers: int = 2, port: int) -> Iterator[Network]:
    """Make hosts, and skip the test where that cannot be done.

    Args:
        workers: How many hosts for workers.
        port: A server of 127.0.0.1 that each host is to find under its own 127.0.0.1, past all
            links.
    """
    with ExitStack() as resources:
        try:
            driver = resources.enter_context(_host(1))
            others = tuple(resources.enter_context(_host(2 + n)) for n in range(workers))
            _run(driver, "ip", "link", "add", _DEVICE, "type", "bridge")
            _set_up(driver)
            links = tuple(_link(driver, other, resources) for other in others)
            for host in (driver, *others):
                resources.enter_context(_passage(host, port))
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            pytest.skip(f"network namespaces cannot be made here: {said}")
        yield Network(driver, others, links)


@contextmanager
def _host(number: int) -> Iterator[Host]:
    # It ends with its input, so that no namespace is left when the test is killed.
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo made; exec cat"],  # noqa: S607 - the system's
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as keeper:
        assert keeper.stdout is not None
        if not keeper.stdout.readline():
            assert keeper.stderr is not None
            raise OSError(keeper.stderr.read())
        host = Host(_ADDRESS.format(number), Path(f"/proc/{keeper.pid}/ns/net"))
        _run(host, "ip", "link", "set", "lo", "up")
        yield host


def _link(driver: Host, worker: Host, resources: ExitStack) -> Link:
    name = f"to{worker.address.rpartition('.')[2]}"
    ends = driver.call(lambda: _tap(name)), worker.call(lambda: _tap(_DEVICE))
    link = Link(ends, Random(worker.address))
    resources.callback(link.close)
    _run(driver, "ip", "link", "set", name, "master", _DEVICE, "up")
    _set_up(worker)
    return link


def _tap(name: str) -> int:
    """Make a tap in the namespace of this thread; it is there until its file is closed."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def _set_up(host: Host) -> None:
    _run(host, "ip", "address", "add", f"{host.address}/24", "dev", _DEVICE)
    _run(host, "ip", "link", "set", _DEVICE, "up")


def _run(host: Host, *words: str) -> None:
    subprocess.run(host.command(*words), check=True, capture_output=True, text=True)  # noqa: S603


@contextmanager
def _passage(host: Host, port: int) -> Iterator[None]:
    """Let a host's own 127.0.0.1 lead to a server on this machine's."""

    def accept() -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                inner, _ = listener.accept()
                outer = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=_join, args=(inner, outer), daemon=True).start()

    with host.call(lambda: socket.create_server(("127.0.0.1", port))) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def _join(inner: socket.socket, outer: socket.socket) -> None:
    """Pass on what each of two connections sends, until one of them ends."""
    across = {inner: outer, outer: inner}
    with inner, outer, suppress(OSError):
        while True:
            readable, _, _ = select.select(across, [], [])
            for one in readable:
                if not (data := one.recv(_FRAME)):
                    return
                across[one].sendall(data)
