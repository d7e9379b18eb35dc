"""The configuration of a client of AWS that no variable, profile or session changes."""

from __future__ import annotations

from typing import Any

from aiobotocore.config import AioConfig


def pinned_config(*, attempts: int, **options: Any) -> AioConfig:
    """Return the configuration of a client that makes a call so often until it raises."""
    return AioConfig(
        # With `adaptive` a call that is throttled would slow all others of the client, which are
        # about other shards, and its wait cannot always be cancelled.
        retries={"mode": "standard", "total_max_attempts": attempts},
        # With `auto` botocore would ask this machine for its region, and block the event loop.
        defaults_mode="legacy",
        **options,
    )
