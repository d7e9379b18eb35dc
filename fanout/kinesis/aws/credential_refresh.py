"""What is done about calls that are refused because of who makes them."""

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

__all__ = ("CredentialRefresh",)

# A key that was just made, or a policy that was just changed, is known everywhere within seconds;
# after these refusals in a row only a person can help.
_SOON: Final = 3

# A program that tells the keys (credential_process) may hang, and botocore waits for it for ever.
_RENEWAL_TIMEOUT: Final = 60.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Caller:
    """One shard, or the listing of them: what its last call was signed with, and its refusals."""

    generation: int = 0
    refusals: int = 0


@final
class CredentialRefresh:
    """Renew the credentials once for all the calls that were refused with the same ones.

    Args:
        renew: Finds credentials anew, and signs with them from then on.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._generation = 0
        self._callers: dict[str | None, _Caller] = {}

    def calling(self, caller: str | None) -> None:
        """Note that a call is about to be signed, by a shard's reader or, with None, a listing."""
        self._callers.setdefault(caller, _Caller()).generation = self._generation

    def allowed(self, caller: str | None) -> None:
        """Note that a call was answered, and not with a refusal."""
        self._callers[caller].refusals = 0

    async def refused(self, caller: str | None) -> Pace:
        """See to it that the next call is signed with newer credentials; return when to make it.

        Thousands of shards are refused together: the first renews the credentials, and the others
        wait for it, for a minute at most. Credentials that cannot be renewed are kept, and that is
        told to the log.

        Cancellation: the next caller that waits renews them.
        """
        about = self._callers.setdefault(caller, _Caller())
        about.refusals += 1
        async with self._renewing:
            if about.generation == self._generation:
                await self._try_to_renew()
        return Pace.JITTER if about.refusals <= _SOON else Pace.SLOW

    async def _try_to_renew(self) -> None:
        try:
            async with asyncio.timeout(_RENEWAL_TIMEOUT):
                await self._renew()
        except Exception as error:
            if cancelled_by_us():
                raise asyncio.CancelledError from error
            # The text of an error may quote what a program or a file said, so it is left out.
            name = code_of(error) or type(error).__name__
            log.warning("the AWS credentials cannot be renewed, and are kept: %s", name)
        else:
            log.info("the AWS credentials were read anew, because calls were refused")
        self._generation += 1
