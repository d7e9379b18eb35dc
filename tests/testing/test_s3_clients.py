from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.errors import SetupError
from fanout.testing import s3_clients

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jars of a pyspark."""
    monkeypatch.setattr(s3_clients, "pyspark_jars", lambda: tmp_path)
    return tmp_path


def test_s3a_is_found_by_the_hadoop_of_pyspark(pyspark: Path) -> None:
    (pyspark / "hadoop-client-api-3.5.0.jar").touch()
    assert s3_clients.s3a_list().name == "s3a-hadoop-3.5.0.txt"


@pytest.mark.parametrize(
    ("jar", "version"), [("hadoop-client-api-3.3.4.jar", "3.3.4"), ("hadoop.jar", "unknown")]
)
def test_another_hadoop_is_refused_in_one_sentence(pyspark: Path, jar: str, version: str) -> None:
    (pyspark / jar).touch()
    with pytest.raises(SetupError) as refused:
        s3_clients.s3a_jars()
    assert str(refused.value) == (
        "S3A needs a pyspark with Hadoop 3.5.0, such as 4.3; the one that is installed has Hadoop "
        f"{version}"
    )
