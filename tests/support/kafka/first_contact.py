"""First contacts with clusters that stay dead: a test ends their time when it has seen enough."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from fanout.kafka.protocol.diagnosis import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.cluster import Server
    from fanout.kafka.protocol.diagnosis import Diagnosis
    from fanout.kafka.security import Security

CONNECT_TIMEOUT: Final = 100.0
"""The `connect_timeout` of the contacts that `ended_once_seen` ends."""


@contextmanager
def ended_once_seen(*servers: Server) -> Iterator[None]:
    """Let the time of a first contact be over as soon as it is known what is wrong with servers.

    A time of a few seconds may be over before that, where the machine stands still.
    """
    timeout = asyncio.timeout
    contacts: list[asyncio.Timeout] = []
    seen: set[Server] = set()

    def note(seconds: float | None) -> asyncio.Timeout:
        made = timeout(seconds)
        # Later ones are those of single attempts.
        if seconds == CONNECT_TIMEOUT and not contacts:
            contacts.append(made)
        return made

    async def see(server: Server, security: Security, error: Exception) -> Diagnosis:
        found = await diagnose(server, security, error)
        seen.add(server)
        if seen.issuperset(servers) and not contacts[0].expired():
            contacts[0].reschedule(asyncio.get_running_loop().time())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "timeout", note)
        patch.setattr("fanout.kafka.protocol.first_contact.diagnose", see)
        yield
