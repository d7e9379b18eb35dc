"""Errors of object stores, as one sentence in the words of the user."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from obstore.exceptions import AlreadyExistsError, BaseError, UnauthenticatedError

from fanout.core.error_text import text_of
from fanout.core.sentence import Option, Sentence, Suggestion
from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

STORE_ERRORS: Final = (BaseError, OSError, ValueError)
"""What a call into obstore raises, and what a local file does."""

HIDDEN_SETTINGS: Final = "storage_options that are secret"
"""How sentences name those settings; a front end that shows what users give has none of them."""

# The codes that S3, Google Cloud Storage, Azure and stores like them put into their answers, and
# what they mean. What is not here is told as it is, without a guess.
_NO_BUCKET: Final = "the bucket {bucket!r} does not exist; create it, or correct the location"
_EXPIRED: Final = "the credentials have expired ({code}); renew them"
_REFUSED: Final = (
    "the service does not accept the credentials ({code}); check them, and the endpoint"
)
_FORBIDDEN: Final = (
    "the credentials do not allow it ({code}); allow reading, writing, listing and deleting in "
    "the bucket {bucket!r}"
)
_OTHER_REGION: Final = "the bucket {bucket!r} is in another region ({code}); give "
_SUSPENDED: Final = "the service has suspended the account ({code}); ask it why"
_CLOCK: Final = "the clock of this machine is wrong ({code}); set it by NTP"
_ARCHIVED: Final = (
    "the object is archived ({code}); restore it, and except the location from the rules that "
    "archive objects"
)
_FULL: Final = "the store has no more room ({code}); free some, or raise the quota, and start again"
_BUSY: Final = "other requests to the object were in the way each time ({code}); start again"
_KEY: Final = (
    "the KMS key of the bucket {bucket!r} cannot be used ({code}); enable it, and allow its use"
)
_LOCKED: Final = "the bucket {bucket!r} has an object lock, which needs a checksum ({code}); give "
_MEANINGS: Final = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "AuthenticationFailed": _REFUSED,
    "InvalidAccessKeyId": _REFUSED,
    "InvalidAuthenticationInfo": _REFUSED,
    "InvalidSecurity": _REFUSED,
    "InvalidToken": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "401": _REFUSED,
    "AccessDenied": _FORBIDDEN,
    "AuthorizationFailure": _FORBIDDEN,
    "AuthorizationPermissionMismatch": _FORBIDDEN,
    "InsufficientAccountPermissions": _FORBIDDEN,
    "403": _FORBIDDEN,
    "404": "the service has nothing there ({code}); check the endpoint, and the bucket {bucket!r}",
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "PermanentRedirect": _OTHER_REGION,
    "AccountIsDisabled": _SUSPENDED,
    "AccountProblem": _SUSPENDED,
    "AllAccessDisabled": _SUSPENDED,
    "UserSuspended": _SUSPENDED,
    "RequestTimeTooSkewed": _CLOCK,
    "InvalidObjectState": _ARCHIVED,
    "BlobArchived": _ARCHIVED,
    "BlobBeingRehydrated": _ARCHIVED,
    "QuotaExceeded": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
    "ConditionalRequestConflict": _BUSY,
    "OperationAborted": _BUSY,
    "KMS": _KEY,
    "ObjectLock": _LOCKED,
    "NotImplemented": "the store does not know what was asked of it ({code}); use one with "
    "conditional writes",
}
# The setting that ends a meaning.
_SETTINGS: Final = {
    _OTHER_REGION: Option("storage.region", text="the storage option region"),
    _LOCKED: Option(
        "storage.checksum_algorithm=sha256", text="the storage option checksum_algorithm=sha256"
    ),
}
# What the service asks to have repeated, and obstore does not repeat: it does so with the status
# 408, 429 and 5xx.
_ASKS_AGAIN: Final = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout"}
_SERVER_ERRORS: Final = 500
_NOT_FOUND: Final = 404


@contextmanager
def object_errors(doing: str, bucket: str) -> Iterator[None]:
    """Turn an error of obstore in the block into a CheckpointError of one sentence.

    `doing` is what was tried, as it follows "cannot": "read s3://lake/runs/1". The cause is the
    error without the body of the answer, which may hold the id of a key. FileExistsError passes as
    it is.
    """
    try:
        yield
    except FileExistsError:
        raise
    except STORE_ERRORS as error:
        raise CheckpointError(f"cannot {doing}: ", _reason(error, bucket)) from _short(error)


def plain_text(error: Exception) -> str:
    """Return what obstore says, in one line, without the body of an answer."""
    return re.sub(r"^Generic \w+ error: ", "", _first_line(error))


def is_missing(error: FileNotFoundError) -> bool:
    """Say whether there is no such object, in a bucket that exists."""
    return _MEANINGS.get(_code(error)) is not _NO_BUCKET


def may_have_written(error: Exception) -> bool:
    """Say whether a put that failed with `error` may have taken effect.

    It may where the name is taken, or where the answer was lost, or was an error of the service
    itself. It has not where the service refused it, or was never reached.
    """
    if isinstance(error, AlreadyExistsError) or is_server_error(error):
        return True
    if (status := _status(error)) is not None:
        # The parts of a large file are gone when an earlier request has made one object of them.
        return status == _NOT_FOUND and _MEANINGS.get(_code(error)) is not _NO_BUCKET
    # There were no credentials to ask with, or another region was asked.
    refused = isinstance(error, UnauthenticatedError) or _is_redirect(error)
    return isinstance(error, BaseError) and not refused and _transport(error) != "Connect"


def asks_again(error: Exception) -> bool:
    """Say whether the service asks for the request once more, which obstore has not made."""
    return _code(error) in _ASKS_AGAIN


def is_lost(error: Exception) -> bool:
    """Say whether a request was sent, and had no answer."""
    return _transport(error) not in {"", "Connect"}


def is_server_error(error: Exception) -> bool:
    """Say whether the service answered that it failed, the last time that it was asked."""
    return (_status(error) or 0) >= _SERVER_ERRORS


def _is_redirect(error: Exception) -> bool:
    return "Received redirect without LOCATION" in str(error)


def _status(error: Exception) -> int | None:
    """Return the HTTP status of the answer; None if there was none."""
    found = re.search(r"non-2xx status code: (\d{3})", str(error))
    return int(found[1]) if found else None


def _transport(error: Exception) -> str:
    """Return obstore's word for how a request ended that had no answer."""
    found = re.search(r"HttpError \{\s*kind: (\w+)", str(error))
    return found[1] if found else ""


def _reason(error: Exception, bucket: str) -> str:
    """Return why a call failed, and what to do about it."""
    status = "" if (number := _status(error)) is None else str(number)
    code = "PermanentRedirect" if _is_redirect(error) else _code(error) or status
    meaning = _MEANINGS.get(_group(code, error))
    if meaning is not None:
        return Sentence(meaning.format(bucket=bucket, code=code), _SETTINGS.get(meaning, ""))
    if code:
        named = "" if code == status else f" ({code})"
        answered = f"the service answered {status or 'with an error'}"
        return f"{answered}{named}{_tries(error)}"
    return _without_answer(error)


def _group(code: str, error: Exception) -> str:
    """Return what stands for a code among the meanings."""
    if code.startswith("KMS.") or (code == "AccessDenied" and "to perform: kms:" in str(error)):
        return "KMS"
    if code == "InvalidRequest" and "Object Lock" in str(error):
        return "ObjectLock"
    missing = _status(error) == _NOT_FOUND and code not in _MEANINGS
    return str(_NOT_FOUND) if missing else code


def _without_answer(error: Exception) -> str:
    """Return why there was no answer."""
    line = _first_line(error)
    _, provider, problem = line.partition("credential provider: ")
    if provider:
        return f"the credentials cannot be found or renewed: {problem}"
    if re.search(r"//169\.254\.|//metadata\.google|//fd00:ec2:", line):
        ways = Suggestion(" or as ", Option(HIDDEN_SETTINGS, text="storage options"))
        return Sentence("no credentials were found: give them in the environment", ways)
    host = re.search(r"https?://(?:[^/\s]*@)?([^/\s]+)", line)
    at = f" at {host[1]}" if host else ""
    if "HTTP error" in line:
        how = {"Connect": "cannot be reached", "Timeout": "did not answer in time"}.get(
            _transport(error), "cut the connection"
        )
        return f"the service{at} {how}{_tries(error)}; check the endpoint and the network"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return plain_text(error)


def _tries(error: Exception) -> str:
    found = re.search(r"after (\d+) retries", str(error))
    return f", {int(found[1]) + 1} times" if found else ""


def _code(error: Exception) -> str:
    found = re.search(r"<Code>([\w.]+)</Code>", str(error))
    return found[1] if found else ""


def _first_line(error: Exception) -> str:
    """Return what obstore says, without the body of an answer and without its dump."""
    return text_of(error).partition("\n")[0].partition("<")[0].rstrip(" :")


def _short(error: Exception) -> Exception:
    if getattr(error, "errno", None) is None:  # it is obstore's
        error.args = (_first_line(error),)
    return error
