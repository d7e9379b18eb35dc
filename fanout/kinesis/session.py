"""A session that knows its region and credentials, and keeps a role's credentials fresh."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aioboto3
import botocore.session
from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioDeferredRefreshableCredentials,
)
from aiobotocore.session import AioSession

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiobotocore.credentials import AioCredentials

__all__ = ("hide_signed_headers", "open_session")

# With this begins what the service says of a signature that it found wrong: every header that was
# signed, the session token (X-Amz-Security-Token) among them.
_SIGNED_HEADERS: Final = "The Canonical String for this request should have been"


async def open_session(
    session: aioboto3.Session | None, region: str | None, role_arn: str | None
) -> tuple[aioboto3.Session, str]:
    """Return a session that has credentials and makes Kinesis clients without blocking the loop.

    Args:
        session: The session to start from; None for a new one. It is not changed.
        region: The AWS region; None for the session's.
        role_arn: A role to assume with the session's credentials, now and each time that the
            role's own expire; a stream runs for longer than the hour that they usually last.

    Returns:
        The session to make clients with, and the region to make them for.

    Raises:
        SetupError: There are no credentials, or no region.
        ClientError: The role may not be assumed.
    """
    loaded, known_region = await asyncio.to_thread(_load, session, region)
    if await loaded.get_credentials() is None:
        raise SetupError(
            "no AWS credentials were found: configure a profile, a role of this machine, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if role_arn is not None:
        loaded = await _assume_role(loaded, role_arn, known_region)
    return loaded, known_region


def _load(session: aioboto3.Session | None, region: str | None) -> tuple[aioboto3.Session, str]:
    """Have a session read the files that it needs to make a client; it keeps what it read."""
    session = session or aioboto3.Session()
    region = region or session.region_name
    if region is None:
        raise SetupError(
            "no AWS region is known: pass region=..., or set AWS_DEFAULT_REGION or the profile's"
        )
    _ = session.available_profiles  # reads the configuration
    twin = botocore.session.Session()
    twin.register_component("data_loader", _loader(session))
    twin.set_credentials("unused", "unused")
    for service in ("kinesis", "sts"):
        # Unlike an asyncio session, a plain one makes clients in a thread that has no loop.
        twin.create_client(service, region_name=region).close()
    return session, region


def _loader(session: aioboto3.Session) -> Any:
    return session._session.get_component("data_loader")  # noqa: SLF001  # no public way to it


async def _assume_role(source: aioboto3.Session, role_arn: str, region: str) -> aioboto3.Session:
    @asynccontextmanager
    async def client(service: str, **options: Any) -> AsyncIterator[Any]:
        async with source.client(service, region_name=region, **options) as opened:
            hide_signed_headers(opened)
            yield opened

    fetcher = AioAssumeRoleCredentialFetcher(
        client_creator=client,
        source_credentials=await source.get_credentials(),
        role_arn=role_arn,
        extra_args={"RoleSessionName": "fanout"},
    )
    credentials = AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    await credentials.get_frozen_credentials()
    assumed = AioSession(profile=None if source.profile_name == "default" else source.profile_name)
    assumed.register_component("data_loader", _loader(source))
    assumed.register_component("credential_provider", _Provider(credentials))
    session, _ = await asyncio.to_thread(_load, aioboto3.Session(botocore_session=assumed), region)
    return session


def hide_signed_headers(client: Any) -> None:
    """Make a client, and no other of its session, raise errors without what it has signed."""
    client.meta.events.register("after-call", _hide_signed_headers)


def _hide_signed_headers(parsed: dict[str, Any], **_: object) -> None:
    error = parsed.get("Error", {})
    if "Message" in error:
        error["Message"] = error["Message"].partition(_SIGNED_HEADERS)[0].rstrip()


class _Provider:
    """Be what botocore asks for credentials, once for each session."""

    def __init__(self, credentials: AioCredentials) -> None:
        self._credentials = credentials

    async def load_credentials(self) -> Any:
        return self._credentials
