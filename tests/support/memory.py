"""Measure how much memory something takes at one time: Python's own, and Arrow's beside it."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

# A buffer is freed through its pool, so no pool may go while something made in its block is left.
_pools: list[pa.MemoryPool] = []


class Peak:
    """The most bytes that were taken at one time, once the block is left."""

    nbytes = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the block; both kinds of memory count in full, although they peak at other times."""
    peak, before = Peak(), pa.default_memory_pool()
    # A proxy knows the peak since it was made; the pool behind it, since the process began.
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    _pools.append(pool)
    pa.set_memory_pool(pool)
    # Patching may import, and what that takes is not the block's.
    with patch("fanout.kinesis.reading.decode._POOL", pool):
        tracemalloc.start()
        try:
            yield peak
        finally:
            peak.nbytes = tracemalloc.get_traced_memory()[1] + pool.max_memory()
            tracemalloc.stop()
            pa.set_memory_pool(before)
