"""Open the storage at a location."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import naming_extras
from fanout.landing.storage.object_location import parse_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.storage.object_storage import ObjectStorage


def open_object_storage(location: str, options: Mapping[str, str] | None = None) -> ObjectStorage:
    """Open a directory on object storage. Nothing is asked of the service yet.

    The location is such as `s3://bucket/path`; see `parse_location`. Options have the names of
    obstore's S3Config, GCSConfig or AzureConfig, and of its ClientConfig, such as `endpoint`,
    `region`, `access_key_id`, `timeout`. Plain HTTP is used only for an endpoint that begins with
    `http://`, or with `allow_http`.

    Without credentials in `options` they are found as the SDK of the service finds them, where that
    is installed (boto3, google-auth, azure-identity), and otherwise as obstore finds them: in
    environment variables, files, and the metadata service of the machine. None at all are a
    SetupError, as is a missing obstore.
    """
    place = parse_location(location)
    with naming_extras("object storage"):
        from fanout.landing.storage.object_clients import connect  # noqa: PLC0415 - obstore is optional
        from fanout.landing.storage.object_storage import ObjectStorage  # noqa: PLC0415 - the same
    return ObjectStorage(place, *connect(place, options or {}))
