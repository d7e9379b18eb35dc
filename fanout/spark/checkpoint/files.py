"""The names of files below a checkpoint, and what is known about one."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

__all__ = ("FileInfo", "check_name", "is_temporary", "readable_path", "temporary_name")

_TEMPORARY = "_tmp-"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One finished file.

    Args:
        name: Its last component; the directory is the one that was listed.
        size: Bytes.
    """

    name: str
    size: int


def check_name(name: str) -> str:
    """Return `name` if it can name a finished file or a directory of them.

    A component must not start with `_` or `.`: Spark takes such a file for hidden and reads nothing
    from it, and temporaries are told apart by it.

    Args:
        name: A relative path with `/` between its components.

    Raises:
        ValueError: It cannot.
    """
    if any(not part or part[0] in "_." for part in name.split("/")):
        raise ValueError(f"not a name for a checkpoint file: {name!r}")
    return name


def temporary_name() -> str:
    """Return a fresh last component for a file that is still being written."""
    return f"{_TEMPORARY}{uuid.uuid4().hex}"


def is_temporary(name: str) -> bool:
    """Say whether a last component came from `temporary_name`, or is a checksum file beside one.

    Args:
        name: The last component.
    """
    return name.removeprefix(".").startswith(_TEMPORARY)


def readable_path(path: str) -> str:
    """Return `path` as `spark.read` takes it: literally, not as a pattern.

    Args:
        path: A path or URI, not percent-encoded.
    """
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
