"""What decoding JSON raises where the bytes are not what they should be."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ("MALFORMED_JSON",)

MALFORMED_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""All that msgspec raises: for other text than JSON of the type, for text that is not UTF-8, and
for text that is nested deeper than the stack."""
