from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.demo.options import ServiceName, StorageName, check_environment
from fanout.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("source", ServiceName)
def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, source: ServiceName) -> None:
    monkeypatch.setattr("fanout.demo.options.find_spec", lambda _name: None)
    extra = source.partition("-")[0]
    with pytest.raises(SetupError, match=rf"pip install 'fanout-streams\[{extra},spark,testing\]'"):
        check_environment(source)


@pytest.mark.parametrize("source", ServiceName)
def test_a_missing_java_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: ServiceName
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="install Java 17"):
        check_environment(source)


def test_a_server_of_s3_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fanout.demo.options.find_spec", lambda name: None if name == "moto" else object()
    )
    with pytest.raises(SetupError, match=r"pip install 'fanout-streams\[testing\]'"):
        check_environment(ServiceName.KAFKA, StorageName.S3)


@pytest.mark.parametrize("source", [ServiceName.KINESIS, ServiceName.KAFKA])
def test_a_pyspark_without_python_data_sources_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: ServiceName
) -> None:
    monkeypatch.setattr(
        "fanout.demo.options.find_spec",
        lambda name: None if name == "pyspark.sql.datasource" else object(),
    )
    with pytest.raises(SetupError, match=r"needs pyspark 4\.0 or newer"):
        check_environment(source, dataframe=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="install Java 17"):
        check_environment(source)
