from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from fanout.errors import CheckpointError, OptionError, SetupError
from fanout.landing.log.landed_log import Limits
from fanout.landing.storage.object_errors import object_errors
from fanout.spark.dataframe.data_source import LandingDataSource
from fanout.spark.dataframe.options import ReadOptions, in_words_of_options
from tests.support.manual_source import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HERE = {"landing": "/lake/orders"}


def test_options_have_defaults() -> None:
    assert ReadOptions.parse(HERE) == ReadOptions(landing="/lake/orders")


def test_upper_and_lower_case_are_the_same() -> None:
    options = ReadOptions.parse(
        {
            "LANDING": "s3://lake/orders",
            "Reader": "sessions",
            "maxrecordspertrigger": "5",
            "maxBytesPerTrigger": "7",
            "start": "12",
            "failondataloss": "FALSE",
            "storage.Region": "eu-west-1",
        },
        streaming=True,
    )
    assert options == ReadOptions(
        landing="s3://lake/orders",
        reader="sessions",
        limits=Limits(5, 7),
        start=12,
        fail_on_data_loss=False,
        storage={"region": "eu-west-1"},
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r'the option landing is missing: give the location .* \.option\("landing", "s3://'),
        ({"maxRecordPerTrigger": "1"}, r"maxrecordpertrigger is no option .* mean maxRecordsPerT"),
        ({"zzz": "1"}, r"zzz is no option of format\(\"fanout\"\); there are landing, start, "),
        ({"path": "/lake"}, "path is no option .*; give the location as the option landing"),
        ({"reader": "a b"}, "reader='a b' must be 1 to 64 letters"),
        ({"start": "-1"}, "start='-1' must be earliest, latest or the number of an entry"),
        ({"stop": "earliest"}, "stop='earliest' must be latest or the number of an entry"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger='0' must be a whole number, at lea"),
        ({"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger='1m' must be a whole number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss='no' must be true or false"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ReadOptions.parse((HERE if options else {}) | options)


@pytest.mark.parametrize(
    "name",
    ["secret_access_key", "access_key_id", "aws_session_token", "account_key", "sas_key", "token"],
)
def test_secrets_are_refused_and_not_shown(name: str) -> None:
    with pytest.raises(OptionError, match=rf"storage\.{name} would show a secret") as raised:
        ReadOptions.parse(HERE | {f"storage.{name}": "canary"})
    assert "canary" not in str(raised.value)


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    with pytest.raises(OptionError, match=r"stop is an option of spark\.read, not of spark\.readS"):
        ReadOptions.parse(HERE | {"stop": "3"}, streaming=True)
    with pytest.raises(OptionError, match=r"reader is an option of spark\.readStream, not of spar"):
        ReadOptions.parse(HERE | {"reader": "a"}, streaming=False)


@pytest.mark.parametrize("read", ["schema", "streaming", "batch"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"landing": "/lake", "storage.region": "eu-west-1"},
            "storage.* can only be given for object storage, and landing='/lake' is on the disk",
        ),
        (
            {"landing": "dbfs:/lake"},
            (
                "landing='dbfs:/lake' must be a path, or a URI such as s3://bucket/path, "
                "gs://bucket/path or abfss://container@account.dfs.core.windows.net/path"
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_location_names_options(
    options: dict[str, str], sentence: str, read: str
) -> None:
    source, schema = LandingDataSource(options), from_arrow_schema(SCHEMA)
    ways: dict[str, Callable[[], object]] = {
        "schema": source.schema,
        "streaming": lambda: source.streamReader(schema).initialOffset(),
        "batch": lambda: source.reader(schema).partitions(),
    }
    with pytest.raises(OptionError) as refused:
        ways[read]()
    assert str(refused.value) == sentence


def test_missing_credentials_are_to_be_set_where_no_plan_shows_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SetupError) as refused:
        LandingDataSource({"landing": "s3://lake/orders"}).schema()
    assert str(refused.value) == "no AWS credentials were found; log in or set AWS_PROFILE"


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("PermanentRedirect", "; give the option storage.region"),
        ("ObjectLock", "; give the option storage.checksum_algorithm=sha256"),
    ],
)
def test_settings_of_object_storage_are_named_as_options(code: str, written: str) -> None:
    answer = OSError(f"<Code>{code}</Code>")
    with (
        pytest.raises(CheckpointError, match=f"{written}$"),
        in_words_of_options(),
        object_errors("read it", "lake"),
    ):
        raise answer


def test_secrets_of_object_storage_are_not_asked_for_as_options() -> None:
    with (
        pytest.raises(CheckpointError, match=r"give them in the environment$"),
        in_words_of_options(),
        object_errors("read it", "lake"),
    ):
        raise OSError("error sending request for url (http://169.254.169.254/latest)")
