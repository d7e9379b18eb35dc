"""Tokens for Amazon MSK: signed here, without MSK, as the broker of AWS would check them."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiokafka.errors import AuthenticationFailedError
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.service_options import ClusterOptions
from fanout.errors import OptionError
from fanout.kafka.client_properties import msk_iam_token, read_client_properties

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.kafka import Security

BROKERS = "b-1.orders.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"
# As Amazon's guide writes it, for Kafka's own tools.
FILE = """
security.protocol=SASL_SSL
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;
sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
"""
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIACANARY",
    "AWS_SECRET_ACCESS_KEY": "canary-secret",
    "AWS_SESSION_TOKEN": "canary-session",
}


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Let AWS's chain find the keys, and nothing else of this machine."""
    for name in [*os.environ]:
        if name.startswith(("AWS_", "KAFKA_")):
            monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


async def signed(servers: str | None) -> tuple[str, dict[str, str]]:
    """Return the host of the signed URL that a token for brokers is, and what the URL says."""
    return said(await (await asyncio.to_thread(msk_iam_token, servers))())


def said(token: str) -> tuple[str, dict[str, str]]:
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return url.netloc, {name: values[0] for name, values in parse_qs(url.query).items()}


async def given(security: Security) -> tuple[str, dict[str, str]]:
    assert (security.protocol, security.sasl) == ("SASL_SSL", "OAUTHBEARER")
    assert security.token is not None
    return said(await security.token())


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        (BROKERS, "eu-west-1"),
        ("boot-x1y2.c3.kafka-serverless.us-gov-west-1.amazonaws.com:9098", "us-gov-west-1"),
        ("b-1.orders.a1b2c3.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
    ],
)
async def test_a_token_is_a_url_that_is_signed_for_the_region_of_the_brokers(
    servers: str, region: str
) -> None:
    host, query = await signed(servers)
    assert host == f"kafka.{region}.amazonaws.com"
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Expires"] == "900"
    scope = rf"AKIACANARY/\d{{8}}/{region}/kafka-cluster/aws4_request"
    assert re.fullmatch(scope, query["X-Amz-Credential"])
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(query)


async def test_brokers_by_another_name_are_in_the_region_of_the_environment(
    aws: pytest.MonkeyPatch,
) -> None:
    says = "AWS_MSK_IAM needs a region, and the names of the brokers have none: set AWS_REGION"
    with pytest.raises(OptionError, match=f"^{says}$"):
        await signed("127.0.0.1:9098")
    aws.setenv("AWS_DEFAULT_REGION", "eu-south-2")
    assert (await signed("127.0.0.1:9098"))[0] == "kafka.eu-south-2.amazonaws.com"
    aws.setenv("AWS_REGION", "sa-east-1")
    assert (await signed(None))[0] == "kafka.sa-east-1.amazonaws.com"


async def test_credentials_that_cannot_be_had_are_an_error_that_says_what_to_set(
    aws: pytest.MonkeyPatch,
) -> None:
    aws.setenv("AWS_PROFILE", "nowhere")
    says = r"AWS_MSK_IAM cannot use the credentials of AWS: .*profile \(nowhere\)"
    with pytest.raises(AuthenticationFailedError, match=says):
        await signed(BROKERS)
    aws.delenv("AWS_PROFILE")
    for name in KEYS:
        aws.delenv(name)
    says = "AWS_MSK_IAM finds no credentials of AWS: set AWS_PROFILE, or AWS_ACCESS_KEY_ID"
    with pytest.raises(AuthenticationFailedError, match=says):
        await signed(BROKERS)


async def test_the_file_of_the_guide_for_kafkas_own_tools_works_unchanged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "client.properties"
    await asyncio.to_thread(path.write_text, FILE)
    found = await asyncio.to_thread(read_client_properties, path, servers=BROKERS)
    host, _ = await given(found.security)
    assert host == "kafka.eu-west-1.amazonaws.com"
    await asyncio.to_thread(path.write_text, f"{FILE}bootstrap.servers={BROKERS}\n")
    secrets = {"password": "unused", "token": "unused", "key_password": "unused"}
    found = await asyncio.to_thread(read_client_properties, path, secrets=secrets)
    host, _ = await given(found.security)
    assert host == "kafka.eu-west-1.amazonaws.com"


async def test_the_mechanism_alone_is_enough_for_a_command() -> None:
    options: dict[str, Any] = {"bootstrap_servers": BROKERS, "mechanism": "AWS_MSK_IAM"}
    security = (await asyncio.to_thread(ClusterOptions(**options).cluster)).security
    assert not callable(security)
    host, _ = await given(security)
    assert host == "kafka.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--protocol", "SSL"], "--protocol SSL has no SASL, so leave --mechanism out, or use"),
        (
            ["--username", "etl"],
            "--mechanism AWS_MSK_IAM takes the credentials of AWS, so leave --username out",
        ),
        ([], "AWS_MSK_IAM needs a region, and the names of the brokers have none: set AWS_REGION"),
    ],
)
def test_a_command_that_contradicts_itself_says_so(options: list[str], says: str) -> None:
    servers = BROKERS if options else "127.0.0.1:1"
    command = ["share", "describe", "billing", "--bootstrap-servers", servers]
    result = CliRunner().invoke(app, [*command, "--mechanism", "AWS_MSK_IAM", *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"fanout share: {says}")


def test_a_command_without_the_signer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = "aws_msk_iam_sasl_signer"
    for module in (signer, f"{signer}.MSKAuthTokenProvider"):
        monkeypatch.setitem(sys.modules, module, None)
    command = ["share", "describe", "billing", "--bootstrap-servers", BROKERS]
    result = CliRunner().invoke(app, [*command, "--mechanism", "AWS_MSK_IAM"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"fanout share: AWS_MSK_IAM needs {signer}, which is not installed: "
        "pip install 'fanout-streams[kafka,msk]'\n"
    )
