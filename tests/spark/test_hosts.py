"""The hosts and links on which landers are tested, tried with datagrams."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.patience import PATIENCE
from tests.support.spark.hosts import network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.spark.hosts import Host, Network


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def hosts(server: socket.socket) -> Iterator[Network]:
    with network(port=server.getsockname()[1]) as made:
        yield made


def datagrams(host: Host) -> socket.socket:
    def bound() -> socket.socket:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((host.address, 7))
        one.settimeout(PATIENCE)
        return one

    return host.call(bound)


def test_a_link_is_cut_slow_or_lossy_and_well_again(hosts: Network) -> None:
    link, (worker, other) = hosts.links[0], hosts.workers
    with datagrams(hosts.driver) as driver, datagrams(worker) as near, datagrams(other) as far:

        def arrives(sender: socket.socket, text: bytes) -> float:
            began = time.monotonic()
            sender.sendto(text, (hosts.driver.address, 7))
            assert driver.recv(100) == text
            return time.monotonic() - began

        arrives(near, b"well")
        link.delay = 0.2
        assert arrives(near, b"slow") >= 0.2
        link.delay = 0.0
        dropped = threading.Event()

        def drop(frame: bytes) -> None:
            if b"lost" in frame:  # the kernel sends frames of its own
                dropped.set()

        link.on_drop = drop
        for kind in ("loss", "is_cut"):
            dropped.clear()
            setattr(link, kind, 1)
            near.sendto(b"lost", (hosts.driver.address, 7))
            assert dropped.wait(PATIENCE)
            setattr(link, kind, 0)
            arrives(far, b"by another link")
            arrives(near, b"mended")


def test_a_server_of_this_machine_is_there_past_all_links(
    hosts: Network, server: socket.socket
) -> None:
    for link in hosts.links:
        link.is_cut = True
    address = ("127.0.0.1", server.getsockname()[1])
    for host in (hosts.driver, *hosts.workers):
        with host.call(lambda: socket.create_connection(address, 5)) as client:
            taken, _ = server.accept()
            with taken:
                client.sendall(b"ask")
                assert taken.recv(100) == b"ask"
                taken.sendall(b"answer")
                assert client.recv(100) == b"answer"


def test_nothing_is_left_of_hosts_after_a_failure(server: socket.socket) -> None:
    devices = socket.if_nameindex()
    made: list[Host] = []

    def fail() -> None:
        with network(port=server.getsockname()[1]) as found:
            made.extend((found.driver, *found.workers))
            assert all(host.namespace is not None and host.namespace.exists() for host in made)
            raise ValueError("a test has failed")

    with pytest.raises(ValueError, match="a test has failed"):
        fail()
    assert len(made) == 3
    assert not any(host.namespace is not None and host.namespace.exists() for host in made)
    assert socket.if_nameindex() == devices
