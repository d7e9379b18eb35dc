"""Which hosts are this machine, so that nothing leaves it without TLS."""

from __future__ import annotations

import ipaddress

__all__ = ("is_loopback",)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name or address alone; nothing is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
