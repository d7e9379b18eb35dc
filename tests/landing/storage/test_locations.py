"""Locations on object storage, their options and their credentials."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import pytest

from fanout.errors import CheckpointError, OptionError, SetupError
from fanout.landing.storage.object_location import (
    ObjectLocation,
    is_object_location,
    parse_location,
)
from fanout.landing.storage.opening import open_object_storage
from tests.support.s3 import s3_options
from tests.support.s3_faults import FaultyS3, faulty_s3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.s3_faults import _Request

pytestmark = pytest.mark.usefixtures("aws", "no_other_cloud")
ACCOUNT = "container@account.dfs.core.windows.net"
KEYS = {"access_key_id": "id", "secret_access_key": "secret"}
AZURE_KEYS = {"account_name": "account", "account_key": "a2V5"}


@pytest.fixture
def no_other_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("AWS_ACCESS_", "AWS_SECRET_", "AWS_ENDPOINT_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


@pytest.fixture
def service() -> Iterator[FaultyS3]:
    """Take every object, and remember the requests."""
    with faulty_s3("http://unused") as proxy:
        for method in ("PUT", "GET"):
            proxy.always(method, taken)
        yield proxy


TAKEN: list[tuple[str, dict[str, str]]] = []


def taken(request: _Request) -> None:
    request.read()
    TAKEN.append((request.path, {name.lower(): value for name, value in request.headers.items()}))
    request.answer(200, {"ETag": '"1"'}, b"")


def request_of(location: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the path and the headers with which an object is created."""
    TAKEN.clear()
    with closing(open_object_storage(location, options)) as storage:
        storage.create("runs/1", b"mark")
    ((path, headers),) = TAKEN
    return path, headers


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("s3://lake", ObjectLocation("s3://lake", "S3", "lake", "")),
        ("s3n://lake/", ObjectLocation("s3n://lake", "S3", "lake", "")),
        ("s3a://my.lake//a//b c/", ObjectLocation("s3a://my.lake/a/b c", "S3", "my.lake", "a/b c")),
        ("gs://lake/a%20", ObjectLocation("gs://lake/a%20", "GCS", "lake", "a%20")),
        ("az://lake/a", ObjectLocation("az://lake/a", "Azure", "lake", "a")),
        ("abfs://lake/a", ObjectLocation("abfs://lake/a", "Azure", "lake", "a")),
        (
            f"abfss://{ACCOUNT}/a/b",
            ObjectLocation(f"abfss://{ACCOUNT}/a/b", "Azure", "container", "a/b", "account"),
        ),
        (
            "abfss://c@acc.dfs.core.chinacloudapi.cn/a",
            ObjectLocation(
                "abfss://c@acc.dfs.core.chinacloudapi.cn/a",
                "Azure",
                "c",
                "a",
                "acc",
                "https://acc.blob.core.chinacloudapi.cn",
            ),
        ),
    ],
)
def test_a_location_names_a_bucket_and_a_directory(location: str, place: ObjectLocation) -> None:
    assert is_object_location(location)
    assert parse_location(location) == place


@pytest.mark.parametrize("location", ["/lake", "lake", "file:///lake", "hdfs://lake/a", "c:/lake"])
def test_other_locations_are_no_object_storage(location: str) -> None:
    assert not is_object_location(location)
    with pytest.raises(OptionError, match=r"is no location on object storage: one begins with s3:"):
        parse_location(location)


@pytest.mark.parametrize("location", ["s3://", "s3:///a", "gs://-lake", "s3://a/../b", "s3://a/\n"])
def test_a_location_without_a_bucket_or_with_a_strange_directory_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="names no bucket, or no directory in one") as caught:
        parse_location(location)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "s3://id:canary@lake/a",
        "s3://canary@lake/a",
        "gs://canary@lake",
        "az://c@canary",
        "abfss://canary:c@account.dfs.core.windows.net/a",
        "http://id:canary@host/lake",
    ],
)
def test_credentials_in_a_location_are_refused_and_not_shown(location: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_location(location)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        (
            "s3://lake",
            {"zone": "a"},
            "zone is no storage option of S3; obstore's S3Config and",
        ),
        ("gs://lake", {"region": "a"}, "region is no storage option of GCS; obstore's GCSConfig"),
        ("az://lake", {"region": "a"}, "region is no storage option of Azure; obstore's AzureC"),
        (
            "s3://lake",
            {"endpoint": "minio:9000"},
            "endpoint must begin with https:// or http://: ",
        ),
        ("s3://lake", {"bucket": "other"}, "of S3 are wrong: Duplicate key aws_bucket provided"),
        ("s3://lake", {"timeout": "soon"}, 'of S3 are wrong: failed to parse "soon" as Duration'),
        ("s3://lake", {"allow_http": "yo"}, 'of S3 are wrong: failed to parse "yo" as boolean'),
        ("s3://lake", {"proxy_nonsense": "a"}, "of S3 are wrong: Invalid key: proxy_nonsense"),
        ("s3://lake", {"region": 5}, "of S3 are wrong: 'int' object is not an instance of 'str'"),
        ("az://lake", {}, "of Azure are wrong: Account must be specified"),
    ],
)
def test_a_wrong_option_is_one_clear_line(
    location: str, options: dict[str, Any], message: str
) -> None:
    keys = KEYS if location.startswith("s3") else {}
    with pytest.raises(OptionError) as caught:
        open_object_storage(location, keys | options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "aws_", "AWS_"])
def test_options_may_have_the_prefix_of_environment_variables(
    service: FaultyS3, prefix: str
) -> None:
    options = {f"{prefix}{name}": value for name, value in s3_options(service.endpoint).items()}
    path, headers = request_of("s3://lake/a b/c", options | {f"{prefix}allow_http": "true"})
    assert path == "/lake/a%20b/c/runs/1"
    assert headers["if-none-match"] == "*"
    assert "Credential=testing/" in headers["authorization"]


def test_google_creates_under_the_condition_that_nothing_is_there(service: FaultyS3) -> None:
    options = {"base_url": service.endpoint, "bearer_token": "token"}
    path, headers = request_of("gs://lake/a b/c", options)
    assert unquote(path) == "/lake/a b/c/runs/1"
    assert headers["x-goog-if-generation-match"] == "0"
    assert headers["authorization"] == "Bearer token"


@pytest.mark.parametrize("container", ["az://container", f"abfss://{ACCOUNT}"])
def test_azure_creates_under_the_condition_that_nothing_is_there(
    service: FaultyS3, container: str
) -> None:
    options = AZURE_KEYS | {"azure_storage_endpoint": service.endpoint}
    path, headers = request_of(f"{container}/a b/c", options)
    assert path == "/container/a%20b/c/runs/1"
    assert headers["if-none-match"] == "*"
    assert headers["authorization"].startswith("SharedKey account:")


def test_the_account_of_a_location_names_the_endpoint() -> None:
    for cloud, endpoint in (
        ("core.windows.net", None),
        ("core.chinacloudapi.cn", "https://account.blob.core.chinacloudapi.cn"),
    ):
        location = f"abfss://container@account.dfs.{cloud}/a"
        config = open_object_storage(location, {"account_key": "a2V5"})._store.config
        assert config["account_name"] == "account"
        assert config.get("endpoint") == endpoint


def test_azure_identity_is_asked_unless_a_variable_has_a_key(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def provider() -> Any:
        return lambda: {"token": "of-the-sdk", "expires_at": None}

    module = SimpleNamespace(AzureCredentialProvider=provider)
    monkeypatch.setitem(sys.modules, "obstore.auth.azure", module)
    options = {"account_name": "account", "endpoint": service.endpoint}
    _, headers = request_of("az://container", options)
    assert headers["authorization"] == "Bearer of-the-sdk"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    _, headers = request_of("az://container", options)
    assert headers["authorization"].startswith("SharedKey account:")


def test_google_auth_is_asked_unless_a_variable_has_a_token(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def default(*, scopes: list[str]) -> tuple[list[str], str]:
        return scopes, "project"

    def provider(scopes: list[str]) -> Any:
        return lambda: {"token": scopes[0].rpartition("/")[2], "expires_at": None}

    modules = {
        "google": SimpleNamespace(auth=SimpleNamespace(default=default)),
        "google.auth": SimpleNamespace(default=default),
        "google.auth.exceptions": SimpleNamespace(GoogleAuthError=ZeroDivisionError),
        "obstore.auth.google": SimpleNamespace(GoogleCredentialProvider=provider),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    options = {"base_url": service.endpoint}
    _, headers = request_of("gs://lake", options)
    assert headers["authorization"] == "Bearer devstorage.read_write"
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "of-a-variable")
    _, headers = request_of("gs://lake", options)
    assert headers["authorization"] == "Bearer of-a-variable"


def test_plain_http_is_used_only_where_it_is_named(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", service.endpoint)
    assert request_of("s3://lake", KEYS)[0] == "/lake/runs/1"
    storage = open_object_storage("s3://lake", KEYS | {"endpoint": "https://127.0.0.1:1"})
    assert "allow_http" not in storage._store.client_options
    storage = open_object_storage("s3://lake", KEYS | {"allow_http": "false"})
    assert storage._store.client_options["allow_http"] == "false"


def test_the_user_may_say_how_long_a_request_may_take() -> None:
    storage = open_object_storage("s3://lake", KEYS | {"timeout": "3s"})
    for client in (storage._store, storage._uploads):
        assert client.client_options == {"connect_timeout": "5s", "timeout": "3s"}
    storage = open_object_storage("s3://lake", KEYS)
    assert storage._store.client_options["timeout"] == "10s"
    assert storage._uploads.client_options["timeout"] == "120s"


def test_a_profile_gives_credentials_and_region_as_in_boto3(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile lake]\naws_access_key_id = AKIALAKE\naws_secret_access_key = canary\n"
        "region = eu-west-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    _, headers = request_of("s3://lake", {"endpoint": service.endpoint})
    assert "Credential=AKIALAKE/" in headers["authorization"]
    assert "/eu-west-1/s3/" in headers["authorization"]
    _, headers = request_of("s3://lake", {"endpoint": service.endpoint, "region": "us-west-2"})
    assert "/us-west-2/s3/" in headers["authorization"]
    _, headers = request_of("s3://lake", {"endpoint": service.endpoint} | KEYS)
    assert "Credential=id/" in headers["authorization"]
    _, headers = request_of("s3://lake", {"endpoint": service.endpoint, "skip_signature": "true"})
    assert "authorization" not in headers


def test_where_there_are_no_credentials_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SetupError) as caught:
        open_object_storage("s3://lake")
    assert str(caught.value) == (
        "no AWS credentials were found; log in or set AWS_PROFILE, or give the storage "
        "options access_key_id and secret_access_key"
    )
    monkeypatch.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(SetupError, match=r"found: The config profile \(nowhere\) could not be f"):
        open_object_storage("s3://lake")


def test_credentials_that_cannot_be_found_are_named(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile lake]\n"
        f"credential_process = {sys.executable} -c \"raise SystemExit('the session is over')\"\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    with pytest.raises(SetupError) as caught:
        request_of("s3://lake", {"endpoint": service.endpoint})
    assert str(caught.value) == (
        "no AWS credentials were found: Error when retrieving credentials from custom-process: the "
        "session is over; log in or set AWS_PROFILE, or give the storage options access_key_id and "
        "secret_access_key"
    )


def test_credentials_that_end_meanwhile_are_named(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Ended:
        config: ClassVar[dict[str, str]] = {}

        def __call__(self) -> None:
            asked.append(1)
            raise RuntimeError("the session is over")

    monkeypatch.setattr("obstore.auth.boto3.Boto3CredentialProvider", Ended)
    with pytest.raises(CheckpointError) as caught:
        request_of("s3://lake", {"endpoint": service.endpoint})
    assert str(caught.value) == (
        "cannot write s3://lake/runs/1: the credentials cannot be found or renewed: RuntimeError: "
        "the session is over"
    )
    assert asked == [1]


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("object_clients", "object_errors", "object_storage"):
        monkeypatch.delitem(sys.modules, f"fanout.landing.storage.{name}", raising=False)
    with pytest.raises(SetupError) as caught:
        open_object_storage("s3://lake", KEYS)
    assert str(caught.value) == (
        "object storage needs obstore, which is not installed: "
        "pip install 'fanout-streams[object-storage]'"
    )


def test_without_boto3_obstore_finds_credentials_by_itself(
    service: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "variable")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    _, headers = request_of("s3://lake", {"endpoint": service.endpoint})
    assert "Credential=variable/" in headers["authorization"]
