"""`--table` needs the library of its table alone."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("text", "other"),
    [
        pytest.param("delta", "pyiceberg", marks=pytest.mark.long),
        ("iceberg:lake/db.orders", "deltalake"),
    ],
)
def test_a_table_needs_no_library_of_another_one(text: str, other: str) -> None:
    code = f"""
import sys
sys.modules[{other!r}] = None
from fanout.cli.table_option import table_option
print(table_option({text!r}))
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
