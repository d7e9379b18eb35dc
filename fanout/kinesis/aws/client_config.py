"""What every client of AWS has, whatever variables, profiles and sessions say.

The module uses private names of aiobotocore's HTTP session; see `aws.raw_bodies` for the supported
versions.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from botocore.httpsession import ProxyConfiguration

from fanout.core.option_checks import is_loopback


def pinned_config(*, attempts: int, **options: Any) -> AioConfig:
    """Return the configuration of a client that attempts a call so often before it fails."""
    return AioConfig(
        # With `adaptive` a call that is throttled would slow all others of the client, which are
        # about other shards, and its wait cannot always be cancelled.
        retries={"mode": "standard", "total_max_attempts": attempts},
        # With `auto` botocore would ask this machine for its region, and block the event loop.
        defaults_mode="legacy",
        **options,
    )


def go_past_proxies(client: Any) -> None:
    """Have one client use no proxy of the environment if its endpoint is on this machine."""
    # A proxy would look for the endpoint on its own machine.
    if is_loopback(urlsplit(client.meta.endpoint_url).hostname or ""):
        client._endpoint.http_session._proxy_config = ProxyConfiguration({})  # noqa: SLF001  # no public name exists
