"""Locations on object storage: URIs of S3, Google Cloud Storage and Azure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from fanout.errors import OptionError

Service: TypeAlias = Literal["S3", "GCS", "Azure"]

# The schemes in one row of Hadoop's connectors and of the vendors' tools name the same place.
_SERVICES: Final[dict[str, Service]] = {
    "s3": "S3",
    "s3a": "S3",
    "s3n": "S3",
    "gs": "GCS",
    "az": "Azure",
    "abfs": "Azure",
    "abfss": "Azure",
}
_URI = re.compile(r"([A-Za-z0-9]+)://([^/]*)(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_AZURE_HOST = re.compile(r"([a-z0-9-]+)\.(?:dfs|blob)\.([a-z0-9.]+)")


@final
@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A directory on object storage."""

    uri: str  # as the user spelled it, without `/` at the end
    service: Service
    bucket: str  # the container of Azure
    # What the keys of its objects begin with, without `/` at the end; empty for the bucket itself.
    prefix: str
    account: str = ""  # of Azure, where the location names it
    endpoint: str = ""  # the one that follows from the account; empty for the service's own


def is_object_location(location: str) -> bool:
    """Say whether a location has a scheme of object storage."""
    found = _URI.fullmatch(location)
    return found is not None and found[1].lower() in _SERVICES


def parse_location(location: str) -> ObjectLocation:
    """Return what a location on object storage names.

    `s3`, `s3a` and `s3n` are one place. So are `az`, `abfs` and `abfss`, whose container may be
    followed by the account (`abfss://container@account.dfs.core.windows.net/path`). Nothing in a
    location is percent-encoded, as for Hadoop. One that holds credentials is an OptionError.
    """
    found = _URI.fullmatch(location)
    service = _SERVICES.get(found[1].lower()) if found else None
    if found is None or service is None:
        raise OptionError(
            f"{_shown(location)} is no location on object storage: one begins with s3://, s3a://, "
            "gs://, az:// or abfss://, then the bucket"
        )
    bucket, at, host = found[2].partition("@")
    account = _AZURE_HOST.fullmatch(host) if service == "Azure" else None
    if (at and account is None) or ":" in found[2]:
        raise OptionError(
            f"after {found[1]}:// only a bucket may follow"
            + (", or container@account.dfs.core.windows.net" if service == "Azure" else "")
            + "; give credentials and the endpoint as storage options"
        )
    parts = [part for part in found[3].split("/") if part]
    if not _BUCKET.fullmatch(bucket) or {".", ".."} & {*parts} or not found[3].isprintable():
        raise OptionError(f"{_shown(location)} names no bucket, or no directory in one")
    prefix = "/".join(parts)
    uri = f"{found[1]}://{found[2]}/{prefix}".removesuffix("/")
    if account is None:
        return ObjectLocation(uri, service, bucket, prefix)
    endpoint = "" if account[2] == "core.windows.net" else f"https://{account[1]}.blob.{account[2]}"
    return ObjectLocation(uri, service, bucket, prefix, account[1], endpoint)


def _shown(location: str) -> str:
    """Return a location for a message, without what stands before an `@`."""
    return repr(re.sub(r"//[^/]*@", "//***@", location))
