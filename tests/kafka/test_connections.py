from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# What answers of Fetch take and leave, over and over; prints the pages that it had to get anew.
_ANSWERS = """
import resource
from fanout.kafka.connections import Connections

if {connect}:
    Connections([], security=None, context=None, client_id="", options=None)
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    frame = b"x" * (4 << 20)
    parts = [frame[at : at + (1 << 20) - 1] for at in range(0, 4 << 20, 1 << 20)]
    del frame, parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library keeps its own way")
def test_the_memory_of_one_answer_is_used_for_the_next() -> None:
    assert _pages(connect=True) < _pages(connect=False) / 5


def _pages(*, connect: bool) -> int:
    command = [sys.executable, "-c", _ANSWERS.format(connect=connect)]
    return int(subprocess.check_output(command))  # noqa: S603 - our own script
