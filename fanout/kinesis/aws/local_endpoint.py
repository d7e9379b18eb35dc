"""Reach a server on this machine without a proxy, which would look for it on its own machine.

The module uses private names of aiobotocore's HTTP session; see `aws.raw_bodies` for the supported
versions.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from botocore.httpsession import ProxyConfiguration

from fanout.core.option_checks import is_loopback


def go_past_proxies(client: Any) -> None:
    """Have one client use no proxy of the environment if its endpoint is on this machine."""
    if is_loopback(urlsplit(client.meta.endpoint_url).hostname or ""):
        client._endpoint.http_session._proxy_config = ProxyConfiguration({})  # noqa: SLF001  # no public name exists
