"""Where Kinesis may be called without TLS."""

from __future__ import annotations

from urllib.parse import urlsplit

from fanout.core.loopback import is_loopback
from fanout.errors import OptionError

__all__ = ("check_endpoint",)


def check_endpoint(url: str, *, insecure: bool) -> None:
    """Accept https, and plain http on this machine or where it is allowed in so many words.

    Args:
        url: The endpoint.
        insecure: Whether plain http to another machine is allowed.

    Raises:
        OptionError: The endpoint is anything else.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "endpoint_url must not hold a user or a password: it is shown in messages, and Kinesis "
            "takes its credentials from the session"
        )
    match parts.scheme:
        case "https":
            return
        case "http" if insecure or is_loopback(parts.hostname or ""):
            return
        case "http":
            raise OptionError(
                f"the Kinesis endpoint on {parts.hostname} would be used without TLS: use https, "
                "or pass insecure=True if the network is trusted"
            )
        case _:
            raise OptionError("endpoint_url must begin with https:// (or http:// on this machine)")
