"""Credentials that are replaced while clients sign with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ("RenewableCredentials",)


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
