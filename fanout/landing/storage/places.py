"""Where a landing is: on a local disk, or on object storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fanout.core.option_checks import check_path
from fanout.core.sentence import Option
from fanout.errors import OptionError
from fanout.landing.storage.conditional_create import check_conditional_create
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from fanout.landing.storage.locations import open_object_storage
from fanout.landing.storage.object_location import is_object_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.landing.storage.storage import LandingStorage, ReadableFiles


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


def _local(location: str, options: Mapping[str, str] | None) -> Path:
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
                Option("location", location),
                " must be a path, or a URI such as s3://bucket/path, gs://bucket/path or "
                "abfss://container@account.dfs.core.windows.net/path",
            )
    check_path("location", os.path.abspath(found))  # noqa: PTH100 - it keeps links
    return Path(found)
