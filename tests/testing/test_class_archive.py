from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pyspark

from fanout.spark.hadoop.session_checks import require_java
from fanout.testing.spark.class_archive import java_options, main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def an_archive(monkeypatch: pytest.MonkeyPatch, environment: Path) -> Path:
    """Let there be an archive, which is damaged, in an environment with a blank in its name."""
    monkeypatch.setattr(sys, "prefix", str(environment / "an environment"))
    before = java_options()
    assert "SharedArchiveFile" not in before
    directory = environment / "an environment" / "share" / "fanout"
    directory.mkdir(parents=True)
    archive = directory / f"spark-{pyspark.__version__}.jsa"
    archive.write_bytes(b"damaged")
    assert java_options().startswith(before)
    return archive


def test_java_takes_no_notice_of_an_archive_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = an_archive(monkeypatch, tmp_path)
    options = shlex.split(java_options())
    assert f"-XX:SharedArchiveFile={archive}" in options
    answer = subprocess.run(  # noqa: S603 - no shell, our own arguments
        [require_java(), *options, "-version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout == ""
    assert "version" in answer.stderr.splitlines()[0]


def test_an_archive_that_is_there_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = an_archive(monkeypatch, tmp_path)
    main()
    assert archive.read_bytes() == b"damaged"
