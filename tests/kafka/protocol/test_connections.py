from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

# What answers of Fetch take and leave, over and over; prints the pages that it had to get anew.
_ANSWERS = """
import resource
from fanout.kafka.protocol.connections import Connections

if {connect}:
    Connections([], security=None, context=None, client_id="", options=None, scope=None)
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(15):
    frame = bytearray({size})
    parts = [bytes(frame[at : at + {size} // 4]) for at in range(0, {size}, {size} // 4)]
    del frame, parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library keeps its own way")
@pytest.mark.parametrize("size", [4 << 20, 20 << 20])
def test_the_memory_of_one_answer_is_used_for_the_next(size: int) -> None:
    assert _pages(size, connect=True) < _pages(size, connect=False) / 5


def _pages(size: int, *, connect: bool) -> int:
    command = [sys.executable, "-c", _ANSWERS.format(connect=connect, size=size)]
    return int(subprocess.check_output(command))  # noqa: S603 - our own script
