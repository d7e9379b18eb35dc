"""A session that knows its region, and credentials that can be found anew while it is used."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakSet

import aioboto3
import botocore.session
from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioDeferredRefreshableCredentials,
)
from aiobotocore.session import AioSession
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = (
    "RenewableCredentials",
    "hide_signed_headers",
    "open_session",
)


# With this begins what the service says of a signature that it found wrong: every header that was
# signed, the session token (X-Amz-Security-Token) among them.
_SIGNED_HEADERS: Final = "The Canonical String for this request should have been"
# What reads botocore's files for the sessions that are made here, by where else they may be.
_LOADERS: Final[dict[str | None, Any]] = {}
# What has read them, and so holds them.
_LOADED: Final[WeakSet[Any]] = WeakSet()


async def open_session(
    session: aioboto3.Session | None, region: str | None, role_arn: str | None
) -> tuple[aioboto3.Session, str]:
    """Return a session that has credentials and makes Kinesis clients without blocking the loop.

    Its credentials are RenewableCredentials, which are found anew as a session is opened: from
    the environment, the files and the machine's role as they are then, or from what a session that
    is passed in knows of them. Keys that were passed to that session itself stay.

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
    if role_arn is None and isinstance(_inner(loaded)._credentials, RenewableCredentials):  # noqa: SLF001
        return loaded, known_region
    find = partial(_find, session)
    if role_arn is not None:
        find = partial(_assume_role, loaded, role_arn, known_region, find)
    credentials = await find()
    if credentials is None:
        raise SetupError(
            "no AWS credentials were found: configure a profile, a role of this machine, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return _signing_with(RenewableCredentials(credentials, find), loaded), known_region


def _load(session: aioboto3.Session | None, region: str | None) -> tuple[aioboto3.Session, str]:
    """Have a session read the files that it needs to make a client; it keeps what it read."""
    session = session or _new_session()
    region = region or session.region_name
    if region is None:
        raise SetupError(
            "no AWS region is known: pass region=..., or set AWS_DEFAULT_REGION or the profile's"
        )
    _ = session.available_profiles  # reads the configuration
    loader = _inner(session).get_component("data_loader")
    if loader not in _LOADED:
        twin = botocore.session.Session()
        twin.register_component("data_loader", loader)
        twin.set_credentials("unused", "unused")
        for service in ("kinesis", "sts"):
            # Unlike an asyncio session, a plain one makes clients in a thread that has no loop.
            twin.create_client(service, region_name=region).close()
        _LOADED.add(loader)
    return session, region


def _new_session() -> aioboto3.Session:
    """Make a session that does not read again what another one of this process has read."""
    session = aioboto3.Session()
    inner = _inner(session)
    place = inner.get_config_variable("data_path")
    loader = _LOADERS.setdefault(place, inner.get_component("data_loader"))
    inner.register_component("data_loader", loader)
    return session


def _inner(session: aioboto3.Session) -> Any:
    return session._session  # noqa: SLF001  # no public way to botocore's session


def _signing_with(credentials: RenewableCredentials, session: aioboto3.Session) -> aioboto3.Session:
    """Return a twin of a session that has other credentials; the session is not changed."""
    twin = copy(session)
    twin._session = copy(_inner(session))  # noqa: SLF001  # aioboto3 would register handlers again
    twin._session._credentials = credentials  # noqa: SLF001  # set_credentials takes keys only
    return twin


async def _find(session: aioboto3.Session | None) -> Any:
    """Look for credentials as if for the first time, in threads, because that reads files."""
    held = None if session is None else _inner(session)._credentials  # noqa: SLF001  # asking would load them
    match held:
        case RenewableCredentials():
            await held.renew()
            return held
        case _ if held is not None and held.method == "explicit":
            return held
    provider = await asyncio.to_thread(_provider, session)
    # In loops of their own, because the providers read files, and so does a first client of STS.
    found = await asyncio.to_thread(asyncio.run, provider.load_credentials())
    if found is not None:
        await asyncio.to_thread(asyncio.run, found.get_frozen_credentials())
    return found


def _provider(session: aioboto3.Session | None) -> Any:
    if session is None:
        inner = AioSession()
        inner.register("after-call", _hide_signed_headers)
    else:
        inner = _inner(session)
    _ = inner.full_config  # reads the configuration
    return inner.get_component("credential_provider")


async def _assume_role(
    session: aioboto3.Session,
    role_arn: str,
    region: str,
    find_source: Callable[[], Awaitable[Any]],
) -> Any:
    """Assume a role with credentials that are found first; None where there are none."""
    source = await find_source()
    if source is None:
        return None

    @asynccontextmanager
    async def client(service: str, **options: Any) -> AsyncIterator[Any]:
        async with session.client(service, region_name=region, **options) as opened:
            hide_signed_headers(opened)
            yield opened

    fetcher = AioAssumeRoleCredentialFetcher(
        client_creator=client,
        source_credentials=source,
        role_arn=role_arn,
        extra_args={"RoleSessionName": "fanout"},
    )
    credentials = AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    await credentials.get_frozen_credentials()
    return credentials


def hide_signed_headers(client: Any) -> None:
    """Make a client, and no other of its session, raise errors without what it has signed."""
    client.meta.events.register("after-call", _hide_signed_headers)


def _hide_signed_headers(parsed: dict[str, Any], **_: object) -> None:
    error = parsed.get("Error", {})
    if "Message" in error:
        error["Message"] = error["Message"].partition(_SIGNED_HEADERS)[0].rstrip()


@final
class RenewableCredentials:
    """Be what botocore signs with, and hold whatever credentials were found last.

    botocore keeps the credentials that a session finds first: those with an expiry are renewed by
    themselves, but a key that was read from a file or the environment stays although the file
    changes.

    Args:
        current: The credentials that were found at first.
        find: Looks for credentials as if for the first time; None where there are none.
    """

    def __init__(self, current: Any, find: Callable[[], Awaitable[Any]]) -> None:
        self._current = current
        self._find = find

    def __repr__(self) -> str:
        return f"<RenewableCredentials from {self.method}>"

    @property
    def method(self) -> str:
        """Where the credentials come from, in botocore's words."""
        return str(self._current.method)

    async def get_frozen_credentials(self) -> Any:
        """Return the keys for one request, renewed first if they are about to expire.

        Raises:
            CredentialRetrievalError: What a program tells instead of keys is not what it should be.
            Exception: Whatever else botocore raises where they cannot be renewed.
        """
        try:
            return await self._current.get_frozen_credentials()
        except ValueError as error:
            kind = type(error).__name__
        # Not in the handler: the error quotes what the program said, and would be its context.
        raise CredentialRetrievalError(provider=self.method, error_msg=kind)

    async def get_account_id(self) -> Any:
        """Return the account that the credentials belong to; None where they do not say."""
        return (await self.get_frozen_credentials()).account_id

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return what will return a property; aiobotocore asks for it and never calls it."""
        return self._current.get_deferred_property(name)  # type: ignore[no-any-return]

    async def renew(self) -> None:
        """Find credentials anew, and sign with them from now on.

        Cancellation: the old credentials stay.

        Raises:
            NoCredentialsError: There are none any more; the old ones stay.
            Exception: Whatever botocore raises where they cannot be read; the old ones stay.
        """
        found = await self._find()
        if found is None:
            raise NoCredentialsError
        self._current = found
