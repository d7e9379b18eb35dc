"""Renew the credentials when calls are refused because of them, once for all shards."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.cancellation import cancelled_by_us
from fanout.core.policy import Pace
from fanout.kinesis.aws.error_hints import code_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# A key that was just created, or a policy that was just changed, works everywhere within seconds;
# after this number of refusals in a row only a person can help.
_TRANSIENT_REFUSALS: Final = 3

# A program that prints the keys (credential_process) may hang, and botocore has no timeout for it.
_RENEWAL_TIMEOUT: Final = 60.0

log = logging.getLogger(__name__)


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
