"""The tags of a consumer, by the service's rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fanout.errors import OptionError

__all__ = ("check_tags",)

# AWS API reference, RegisterStreamConsumer and TagResource.
_MAX_TAGS: Final = 50
_KEY: Final = re.compile(r"[\w\s.:/=+@-]{1,128}")
_VALUE: Final = re.compile(r"[\w\s.:/=+@-]{0,256}")


def check_tags(tags: object) -> dict[str, str]:
    """Return a copy of the tags of a consumer.

    Raises:
        OptionError: If they are not a mapping of at most 50 keys (1 to 128 characters, not
            beginning with `aws:`) to values (at most 256 characters).
    """
    if not isinstance(tags, Mapping):
        raise OptionError(f"tags={tags!r} must be a mapping of strings to strings")
    if len(tags) > _MAX_TAGS:
        raise OptionError(f"tags has {len(tags)} entries; a consumer has at most {_MAX_TAGS}")
    for key, value in tags.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise OptionError(
                f"the tag key {key!r} must be 1 to 128 letters, digits, spaces or _ . : / = + - @"
            )
        if key.lower().startswith("aws:"):
            raise OptionError(f"the tag key {key!r} begins with aws:, which AWS keeps for itself")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise OptionError(
                f"the value {value!r} of the tag {key!r} must be at most 256 letters, digits, "
                f"spaces or _ . : / = + - @"
            )
    return dict(tags)
