"""What the client logs: each sentence once a minute, and nothing about itself."""

from __future__ import annotations

import logging
import time
from typing import Final

__all__ = ("filtered_logger",)

_PREVIEW: Final = 'The share consumer is in "Preview"'
_QUIET: Final = 60.0
_MOST: Final = 100  # sentences, enough for whatever the client says within a minute


def filtered_logger(name: str) -> logging.Logger:
    """Return the logger for a client.

    Args:
        name: The module that has the client.
    """
    logger = logging.getLogger(f"{name}.librdkafka")
    if not logger.filters:
        logger.addFilter(_Quiet())
    return logger


class _Quiet(logging.Filter):
    """Let the same sentence of the client pass once a minute, and its advice about itself never.

    The documentation says that the client is in preview.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        _, _, said = text.rpartition(": ")
        if _PREVIEW in text or now - self._said.get(said, -_QUIET) < _QUIET:
            return False
        if len(self._said) > _MOST:
            self._said.clear()
        self._said[said] = now
        return True
