"""Settings of object storage as options: none that obstore knows may show a secret."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import obstore
import pytest

from fanout.errors import OptionError
from fanout.spark.dataframe.options import ReadOptions

HERE = {"landing": "s3://lake/orders"}
SECRETS = {
    *("access_key_id", "secret_access_key", "session_token", "aws_session_token", "aws_token"),
    *("sse_customer_key_base64", "service_account_key", "bearer_token", "account_key"),
    *("azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key"),
    *("client_secret", "azure_client_secret", "azure_storage_client_secret", "sas_key"),
    *("azure_storage_sas_key", "azure_storage_sas_token", "token", "encryption_key"),
    *("fabric_session_token", "default_headers"),
}
# The location says them.
OF_THE_LOCATION = {"bucket", "container_name"} | {
    f"{service}_bucket{end}" for service in ("aws", "google") for end in ("", "_name")
}


def documented() -> set[str]:
    """Return the names that obstore documents, in its stubs, with other spellings."""
    names = set[str]()
    for path in (Path(obstore.__file__).parent / "_store").glob("*.pyi"):
        text = path.read_text()
        names.update(
            name.lower() for name in re.findall(r"^ *- `([A-Z][A-Z0-9_]+)`$", text, re.MULTILINE)
        )
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                names.update(ast.unparse(field.target) for field in fields)
    return names - {
        "max_retries",
        "backoff",
        "retry_timeout",
        "init_backoff",
        "max_backoff",
        "base",
    }


def parse(name: str, value: str = "canary") -> ReadOptions:
    return ReadOptions.parse(HERE | {f"storage.{name}": value})


def test_obstore_documents_the_secrets() -> None:
    assert documented() >= SECRETS | OF_THE_LOCATION


@pytest.mark.parametrize("name", sorted(documented() - SECRETS - OF_THE_LOCATION))
def test_a_setting_without_a_secret_is_an_option(name: str) -> None:
    assert parse(name).storage == {name: "canary"}
    assert parse(name.upper()).storage == {name: "canary"}


@pytest.mark.parametrize("prefix", ["", "aws_", "google_", "azure_", "azure_storage_"])
@pytest.mark.parametrize("name", [*sorted(SECRETS), "master_key", "access_key", "sas", "password"])
def test_a_secret_is_refused_and_not_shown(name: str, prefix: str) -> None:
    with pytest.raises(OptionError, match=rf"storage\.{prefix}{name} would show a sec") as refused:
        parse(prefix + name)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("name", ["endpoint", "aws_endpoint", "proxy_url", "base_url"])
@pytest.mark.parametrize("value", ["https://me:canary@host", "http://canary@[host", "x://canary@h"])
def test_a_user_and_a_password_in_a_url_are_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"{name} has a user, a password or a key") as refused:
        parse(name, value)
    assert "canary" not in str(refused.value)


def test_a_key_in_place_of_its_file_is_refused() -> None:
    with pytest.raises(OptionError, match="service_account has a user, a password or a key"):
        parse("service_account", '{"private_key": "canary"}')


def test_a_setting_that_is_unknown_is_named() -> None:
    with pytest.raises(OptionError, match=r"no setting that can be .* did you mean storage\.reg"):
        parse("regoin")
    with pytest.raises(OptionError, match=r"storage\.bucket is no setting .*; leave it out"):
        parse("bucket")
