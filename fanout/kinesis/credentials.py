"""Credentials of a role that outlive their expiry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import aioboto3
from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioDeferredRefreshableCredentials,
)
from aiobotocore.session import AioSession

if TYPE_CHECKING:
    from aiobotocore.credentials import AioCredentials

__all__ = ("assume_role",)


async def assume_role(
    source: aioboto3.Session, role_arn: str, region: str | None
) -> aioboto3.Session:
    """Return a session whose clients act as a role, for as long as they live.

    The role is assumed at the first call, and again before its credentials expire; a stream runs
    for longer than the hour that they usually last. An error of AssumeRole comes out of the call
    that needed the credentials.

    Args:
        source: The session whose credentials may assume the role; it is not changed.
        role_arn: The role.
        region: The region whose STS endpoint is asked.
    """
    profile = None if source.profile_name == "default" else source.profile_name
    assumed = AioSession(profile=profile)
    fetcher = AioAssumeRoleCredentialFetcher(
        client_creator=partial(assumed.create_client, region_name=region),
        source_credentials=await source.get_credentials(),
        role_arn=role_arn,
        extra_args={"RoleSessionName": "fanout"},
    )
    credentials = AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    assumed.register_component("credential_provider", _Provider(credentials))
    return aioboto3.Session(botocore_session=assumed, region_name=region)


class _Provider:
    """Be what botocore asks for credentials, once for each session."""

    def __init__(self, credentials: AioCredentials) -> None:
        self._credentials = credentials

    async def load_credentials(self) -> Any:
        return self._credentials
