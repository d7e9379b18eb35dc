"""Open a landing, or a checkpoint on object storage, and try what its store promises."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fanout._exports import naming_extras
from fanout.core.option_checks import check_path
from fanout.core.sentence import Option
from fanout.errors import CheckpointError, OptionError
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from fanout.landing.storage.object_location import is_object_location, parse_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.storage.object_storage import ObjectStorage
    from fanout.landing.storage.storage import LandingStorage, ReadableFiles, Storage


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


def open_storage(location: str, options: Mapping[str, str] | None) -> LandingStorage:
    """Open a location for writing, and try what its store promises. It blocks.

    It is a path, or a URI of the scheme `file` or of an object store, with the options of
    `open_object_storage`. A store that cannot create exclusively is a CheckpointError; a library or
    credentials that are missing are a SetupError.
    """
    storage = open_known_storage(location, options)
    if is_object_location(location):
        check_conditional_create(storage)
    return storage


def open_known_storage(location: str, options: Mapping[str, str] | None) -> LandingStorage:
    """Open a location as `open_storage`, but try nothing: an earlier run has. It blocks."""
    if is_object_location(location):
        return open_object_storage(location, options)
    return LocalStorage(_local(location, options))


def open_files(location: str, options: Mapping[str, str] | None) -> ReadableFiles:
    """Open a location for reading. It blocks."""
    if is_object_location(location):
        return open_object_storage(location, options)
    return LocalFiles(_local(location, options))


def absolute_location(storage: Storage) -> str:
    """Return the location of a storage for another process, or a later one."""
    if isinstance(storage, LocalFiles):
        return str(Path(os.path.abspath(storage.root)))  # noqa: PTH100 - it keeps links
    return storage.location


def directories_of(name: str, location: str) -> tuple[str, ...]:
    """Return the directories down to a location, the same for each spelling of it.

    `name` is the option that has it. It may read the links of a disk.
    """
    if is_object_location(location):
        place = parse_location(location)
        return place.service, place.bucket, *filter(None, place.prefix.split("/"))
    return _local(location, None, name).resolve().parts


def _local(location: str, options: Mapping[str, str] | None, name: str = "location") -> Path:
    if options:
        raise OptionError(
            Option("storage_options"),
            " can only be given for object storage, and ",
            Option("location", location),
            " is on the disk",
        )
    match urlsplit(location):
        case ("", _, path, _, _) if path:
            found = location
        case ("file", "" | "localhost", path, _, _):
            found = unquote(path, errors="surrogateescape")
        case _:
            raise OptionError(
                Option(name, location),
                " must be a path, or a URI such as s3://bucket/path, gs://bucket/path or "
                "abfss://container@account.dfs.core.windows.net/path",
            )
    check_path(name, os.path.abspath(found))  # noqa: PTH100 - it keeps links
    return Path(found)


_PROBES: Final = "probes"
_FIRST, _SECOND = b"first", b"other"
# By the clock of the store. A check takes seconds, so it is of a run that was killed.
_ABANDONED_MS: Final = 3_600_000


def check_conditional_create(storage: Storage) -> None:
    """Return if a store refuses to create an object twice; call it before a run writes.

    A probe is created twice, read, and deleted, so that each permission is tried that a run needs:
    that of deleting first, with an object that is not there, as otherwise a probe would stay. It
    cannot tell a store that looks for the name first, and then replaces what another writer has
    created meanwhile. Probes that a killed run left are deleted. A store that replaced the probe,
    or did not show it, is a CheckpointError.
    """
    try:
        refused, found = _probe(storage)
    except CheckpointError as error:
        raise CheckpointError(
            f"cannot use {storage.location}, which is tried with a small object first: ", error
        ) from error
    if not refused or found == _SECOND:
        raise CheckpointError(
            f"cannot use {storage.location}: the store ignores the condition of a put "
            "(If-None-Match) and replaced an object that it was to keep, so two runs could both "
            "write one entry; use a store with conditional writes, as AWS, Google and Azure have"
        )
    if found != _FIRST:
        raise CheckpointError(
            f"cannot use {storage.location}: the store does not show an object that was just "
            "created, so a run could miss the newest entry; use a store with strong consistency"
        )


def _probe(storage: Storage) -> tuple[bool, bytes | None]:
    """Return whether the second creation of a probe was refused, and what was read of it."""
    probe = uuid.uuid4().hex
    name = f"{_PROBES}/{probe}"
    storage.delete(name)
    storage.create(name, _FIRST)
    refused = _is_refused(storage, name)
    found = storage.read(name, limit=len(_FIRST))
    _delete_abandoned(storage, probe)
    storage.delete(name)
    return refused, found


def _is_refused(storage: Storage, name: str) -> bool:
    try:
        storage.create(name, _SECOND)
    except FileExistsError:
        return True
    return False


def _delete_abandoned(storage: Storage, probe: str) -> None:
    written_at = {info.name: info.written_at for info in storage.list(_PROBES)}
    now = written_at.get(probe, 0)
    for name, then in written_at.items():
        if then < now - _ABANDONED_MS:
            storage.delete(f"{_PROBES}/{name}")
