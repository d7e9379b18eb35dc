"""Find AWS credentials, and find them again while a session uses them.

botocore keeps the credentials that a session finds first: it renews those with an expiry, but keeps
a key that it read from a file or the environment although the file changes. The credentials of a
fanout session are `RenewableCredentials`, which can look again. When calls are refused because of
them, `CredentialRefresh` does so once for all shards.

The module uses private names of aiobotocore and aioboto3: `_session` of an aioboto3 session, and
`_credentials` of the botocore session inside; see `aws.raw_bodies` for the supported versions.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioDeferredRefreshableCredentials,
)
from aiobotocore.session import AioSession
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError, ProxyConnectionError

from fanout.core.cancellation import cancelled_by_us
from fanout.core.policy import Pace
from fanout.kinesis.aws.client_config import pinned_config
from fanout.kinesis.aws.error_hints import code_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import aioboto3

    from fanout.kinesis.aws.role import AssumedRole

# Many readers may assume a role together, and STS throttles.
_ATTEMPTS: Final = 5
# The service's message about a wrong signature goes on, from here, with every header that was
# signed, the session token (X-Amz-Security-Token) among them.
_SIGNED_HEADERS: Final = "The Canonical String for this request should have been"
# A key that was just created, or a policy that was just changed, works everywhere within seconds;
# after this number of refusals in a row only a person can help.
_TRANSIENT_REFUSALS: Final = 3

# A program that prints the keys (credential_process) may hang, and botocore has no timeout for it.
_RENEWAL_TIMEOUT: Final = 60.0

log = logging.getLogger(__name__)


@final
class RenewableCredentials:
    """Stand in for botocore's credentials, and delegate to those that were found last.

    `find` looks for credentials as if for the first time; it returns None if there are none.
    """

    def __init__(self, current: Any, find: Callable[[], Awaitable[Any]]) -> None:
        self._current = current
        self._find = find

    def __repr__(self) -> str:
        return f"<RenewableCredentials from {self.method}>"

    @property
    def method(self) -> str:
        """Where the credentials come from, as botocore names it."""
        return str(self._current.method)

    async def get_frozen_credentials(self) -> Any:
        """Return the keys for one request, renewed first if they are about to expire."""
        try:
            return await self._current.get_frozen_credentials()
        except ValueError as error:
            kind = type(error).__name__
        # Raised outside of the handler: the ValueError quotes the output of the process, and would
        # be the context of this error.
        raise CredentialRetrievalError(provider=self.method, error_msg=kind)

    async def get_account_id(self) -> Any:
        """Return the account that the credentials belong to; None if it is not known."""
        return (await self.get_frozen_credentials()).account_id

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that returns a property; aiobotocore requests it but never calls it."""
        return self._current.get_deferred_property(name)  # type: ignore[no-any-return]

    async def renew(self) -> None:
        """Find credentials again, and sign with them; without success the old ones stay."""
        found = await self._find()
        if found is None:
            raise NoCredentialsError
        self._current = found


async def find_credentials(session: aioboto3.Session | None) -> Any:
    """Find credentials as if for the first time, in threads, because that reads files.

    Without a session they are those of the environment, the files and the role of this machine.
    Keys that were passed to the session itself are returned as they are. None says that there are
    none; any error of botocore may come.
    """
    held = None if session is None else inner_session(session)._credentials  # noqa: SLF001  # a public getter would load them
    match held:
        case RenewableCredentials():
            await held.renew()
            return held
        case _ if held is not None and held.method == "explicit":
            return held
    provider = await asyncio.to_thread(_provider, session)
    # Each in a loop of its own: the providers read files, and so does a first client of STS.
    found = await asyncio.to_thread(asyncio.run, provider.load_credentials())
    if found is not None:
        await asyncio.to_thread(asyncio.run, found.get_frozen_credentials())
    return found


def _provider(session: aioboto3.Session | None) -> Any:
    if session is None:
        inner = AioSession()
        inner.register("after-call", hide_signed_headers)
    else:
        inner = inner_session(session)
    _ = inner.full_config  # reads the configuration
    return inner.get_component("credential_provider")


async def assume_role(
    session: aioboto3.Session,
    role: AssumedRole,
    region: str,
    find_source: Callable[[], Awaitable[Any]],
) -> Any:
    """Return a role's credentials, which botocore renews before they expire; None without a source.

    A role that may not be assumed is a ClientError of botocore.
    """
    source = await find_source()
    if source is None:
        return None

    @asynccontextmanager
    async def client(service: str, **options: Any) -> AsyncIterator[Any]:
        config = pinned_config(attempts=_ATTEMPTS)
        async with session.client(service, region_name=region, config=config, **options) as opened:
            hide_secrets(opened)
            yield opened

    fetcher = AioAssumeRoleCredentialFetcher(
        client_creator=client,
        source_credentials=source,
        role_arn=role.arn,
        extra_args=role.assume_role_options,
    )
    credentials = AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    await credentials.get_frozen_credentials()
    return credentials


def inner_session(session: aioboto3.Session) -> Any:
    """Return the botocore session inside an aioboto3 session."""
    return session._session  # noqa: SLF001  # no public name exists


def hide_secrets(client: Any) -> None:
    """Remove secrets from the errors of a client, and of no other of its session."""
    client.meta.events.register("after-call", hide_signed_headers)
    service = client.meta.service_model.service_id.hyphenize()
    # Before the handler that raises the error.
    client.meta.events.register_first(f"needs-retry.{service}", hide_proxy)


def hide_signed_headers(parsed: dict[str, Any], **_: object) -> None:
    """Remove what was signed from the message about a wrong signature."""
    error = parsed.get("Error", {})
    if "Message" in error:
        error["Message"] = error["Message"].partition(_SIGNED_HEADERS)[0].rstrip()


def hide_proxy(caught_exception: BaseException | None, **_: object) -> None:
    """Keep the error below one of a proxy out of tracebacks: it has the proxy's password."""
    if isinstance(caught_exception, ProxyConnectionError):
        caught_exception.__suppress_context__ = True


@dataclass(slots=True)
class _Caller:
    """Hold the refusals of one caller, a shard or the listing, and its last credentials."""

    generation: int = 0
    refusals: int = 0


@final
class CredentialRefresh:
    """Renew the credentials once for all calls that were refused with the same ones."""

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._generation = 0
        self._callers: dict[str | None, _Caller] = {}

    def calling(self, caller: str | None) -> None:
        """Record that a call is about to be signed, of a shard or, with None, of a listing."""
        self._callers.setdefault(caller, _Caller()).generation = self._generation

    def allowed(self, caller: str | None) -> None:
        """Record that a call was answered without a refusal."""
        self._callers[caller].refusals = 0

    async def refused(self, caller: str | None) -> Pace:
        """Ensure that the next call is signed with newer credentials; return when to make it.

        Thousands of shards are refused together: the first renews the credentials, and the others
        wait for it, for a minute at most; if it is cancelled, the next one renews them. Credentials
        that cannot be renewed are kept, and a warning is logged.
        """
        state = self._callers.setdefault(caller, _Caller())
        state.refusals += 1
        async with self._renewing:
            if state.generation == self._generation:
                await self._try_to_renew()
        return Pace.JITTER if state.refusals <= _TRANSIENT_REFUSALS else Pace.SLOW

    async def _try_to_renew(self) -> None:
        try:
            async with asyncio.timeout(_RENEWAL_TIMEOUT):
                await self._renew()
        except Exception as error:
            if cancelled_by_us():
                raise asyncio.CancelledError from error
            # The text of an error may quote the output of a program or a file, so it is left out.
            name = code_of(error) or type(error).__name__
            log.warning("the AWS credentials cannot be renewed, and are kept: %s", name)
        else:
            log.info("the AWS credentials were renewed, because calls were refused")
        self._generation += 1
