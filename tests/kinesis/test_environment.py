"""What variables and profiles may change of the clients that fanout makes, and what they may not.

A case is a variable or a setting of a profile, by the name that botocore has for it, which is also
what is set in a profile. Most change nothing here: they are pinned, are about other services, or
choose an endpoint, which an endpoint that is given replaces. A value that makes no sense is one
sentence.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from aiobotocore.config import AioConfig
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES

import fanout
from fanout.core.backoff import Backoff
from fanout.errors import FanOutError, SetupError
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.session import open_session
from tests.support.kinesis.reading import Stream, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEAD = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Case:
    """Set variables and a profile.

    Args:
        setting: Which setting of botocore this is; None for one that it has not.
        variables: Variables; `{url}` stands for the endpoint.
        profile: Lines of the profile.
        error: What the sentence says in which reading ends; None where everything is read.
    """

    setting: str | None
    variables: dict[str, str] = field(default_factory=dict)
    profile: str = ""
    error: str | None = None

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join([*named, *self.profile.split("\n")])


def both(setting: str, variable: str, value: str, error: str | None = None) -> list[Case]:
    """Set it by its variable, and in a profile."""
    return [
        Case(setting, {variable: value}, error=error),
        Case(setting, profile=f"{setting} = {value}", error=error),
    ]


PINNED = [
    *both("retry_mode", "AWS_RETRY_MODE", "adaptive"),
    *both("retry_mode", "AWS_RETRY_MODE", "legacy"),
    Case("retry_mode", {"AWS_RETRY_MODE": "no such mode"}),
    *both("max_attempts", "AWS_MAX_ATTEMPTS", "50"),
    Case("max_attempts", {"AWS_MAX_ATTEMPTS": "many"}),
    *both("defaults_mode", "AWS_DEFAULTS_MODE", "auto"),
    Case("defaults_mode", {"AWS_DEFAULTS_MODE": "no such mode"}),
]
OF_OTHER_SERVICES = [
    *both("request_min_compression_size_bytes", "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES", "1"),
    Case("disable_request_compression", {"AWS_DISABLE_REQUEST_COMPRESSION": "true"}),
    Case("request_checksum_calculation", {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}),
    Case("response_checksum_validation", {"AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}),
    Case("sigv4a_signing_region_set", {"AWS_SIGV4A_SIGNING_REGION_SET": "*"}),
    Case("auth_scheme_preference", {"AWS_AUTH_SCHEME_PREFERENCE": "sigv4a,noauth"}),
    *both("account_id_endpoint_mode", "AWS_ACCOUNT_ID_ENDPOINT_MODE", "required"),
    Case("endpoint_discovery_enabled", {"AWS_ENDPOINT_DISCOVERY_ENABLED": "true"}),
    Case("sts_regional_endpoints", {"AWS_STS_REGIONAL_ENDPOINTS": "legacy"}),
    Case("disable_host_prefix_injection", {"AWS_DISABLE_HOST_PREFIX_INJECTION": "true"}),
]
ENDPOINTS = [
    *both("use_fips_endpoint", "AWS_USE_FIPS_ENDPOINT", "true"),
    *both("use_dualstack_endpoint", "AWS_USE_DUALSTACK_ENDPOINT", "true"),
    Case("ignore_configured_endpoint_urls", {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
    Case(None, {"AWS_ENDPOINT_URL": DEAD, "AWS_ENDPOINT_URL_KINESIS": DEAD}),
    Case(None, profile=f"endpoint_url = {DEAD}"),
    Case("region", {"AWS_DEFAULT_REGION": "eu-west-1"}),
    Case(None, {"NO_PROXY": "127.0.0.1", "HTTP_PROXY": DEAD, "HTTPS_PROXY": DEAD}),
    Case(None, {"no_proxy": "127.0.0.1", "http_proxy": DEAD, "all_proxy": DEAD}),
]
MACHINE = [
    Case("parameter_validation", profile="parameter_validation = false"),
    Case(None, profile="tcp_keepalive = true"),
    Case("user_agent_appid", {"AWS_SDK_UA_APP_ID": "an app: more than fifty characters" * 2}),
    Case("data_path", {"AWS_DATA_PATH": "/nowhere"}),
    Case("config_file", {"AWS_CONFIG_FILE": "/nowhere"}),
    Case("credentials_file", {"AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}),
    Case("metadata_service_timeout", {"AWS_METADATA_SERVICE_TIMEOUT": "60"}),
    Case("metadata_service_num_attempts", {"AWS_METADATA_SERVICE_NUM_ATTEMPTS": "60"}),
    Case("ec2_metadata_service_endpoint", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": DEAD}),
    Case("ec2_metadata_service_endpoint_mode", {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "ipv6"}),
    Case("ec2_metadata_v1_disabled", {"AWS_EC2_METADATA_V1_DISABLED": "true"}),
    Case("imds_use_ipv6", {"AWS_IMDS_USE_IPV6": "true"}),
    Case(None, {"SSL_CERT_FILE": "/nowhere"}),
    Case(None, {"TZ": "Asia/Kathmandu"}),
    Case(None, {"TZ": "America/St_Johns"}),
    Case(None, {"LANG": "C", "LC_ALL": "C"}),
]
MISTAKES = [
    *both("ca_bundle", "AWS_CA_BUNDLE", "/nowhere", "there is no CA bundle /nowhere: correct"),
    Case("profile", {"AWS_PROFILE": "nobody"}, error=r"profile \(nobody\) could not be found"),
    Case(
        "account_id_endpoint_mode",
        {"AWS_ACCOUNT_ID_ENDPOINT_MODE": "never"},
        error=r"'never' .*\(check the AWS configuration of this machine",
    ),
]
WITHOUT_CASE = {
    "api_versions": "Kinesis has one; botocore names the file of another one, which is missing",
    # Of these botocore itself leaves a socket open, by which it tells another process of calls.
    **dict.fromkeys(("csm_enabled", "csm_host", "csm_port", "csm_client_id"), "no call changes"),
}
CASES = [*PINNED, *OF_OTHER_SERVICES, *ENDPOINTS, *MACHINE, *MISTAKES]


def test_every_setting_of_botocore_has_a_case() -> None:
    known = {case.setting for case in CASES} | WITHOUT_CASE.keys()
    assert known >= set(BOTOCORE_DEFAUT_SESSION_VARIABLES)


@pytest.fixture(autouse=True)
def _nothing_reaches_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client slows itself, and none asks the machine what it is."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a client follows the environment")

    monkeypatch.setattr("aiobotocore.retries.adaptive.register_retry_handler", refuse)
    monkeypatch.setattr("botocore.retries.adaptive.register_retry_handler", refuse)
    for factory in (
        "botocore.configprovider.SmartDefaultsConfigStoreFactory",
        "aiobotocore.configprovider.AioSmartDefaultsConfigStoreFactory",
    ):
        monkeypatch.setattr(f"{factory}.resolve_auto_mode", refuse)


@pytest.fixture
def set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> Iterator[Callable[[Case], None]]:
    def set_all(case: Case) -> None:
        profile = tmp_path / "config"
        profile.write_text(f"[default]\n{case.profile}\n", encoding="utf-8")
        named = {"AWS_CONFIG_FILE": str(profile), **stream.server.environment, **case.variables}
        if case.setting == "ca_bundle":
            monkeypatch.delenv("AWS_CA_BUNDLE")
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        time.tzset()

    yield set_all
    monkeypatch.undo()
    time.tzset()


async def read(stream: Stream, **options: Any) -> int:
    source = KinesisSource(
        stream="orders",
        consumer="etl",
        start=datetime(2020, 1, 1, tzinfo=UTC),
        region="us-east-1",
        endpoint_url=stream.server.endpoint_url,
        backoff=Backoff(base=0.01, cap=0.05),
        **options,
    )
    async with fanout.open(source) as opened:
        drained = await opened.drain(max_records=stream.put_in_all, first_wait=math.inf)
        assert opened.positions
        return drained.num_records


@pytest.mark.fault("The environment asks for retries that slow a whole client")
@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_variable_or_a_profile_changes_nothing_or_is_told(
    stream: Stream, set_up: Callable[[Case], None], case: Case
) -> None:
    set_up(case)
    stream.put(3)
    if case.error is not None:
        with pytest.raises(SetupError, match=case.error) as caught:
            await read(stream)
        assert isinstance(caught.value, FanOutError)
        return
    assert await read(stream) == 3
    assert await read(stream, mode="polling") == 3
    assert await read(stream, http_version=2) == 3


@pytest.mark.parametrize("case", PINNED, ids=str)
async def test_the_configuration_of_a_session_changes_no_retries_either(
    stream: Stream, set_up: Callable[[Case], None], case: Case
) -> None:
    set_up(case)
    own: Any = session()
    given, _ = await open_session(own, "us-east-1", None)
    theirs: Any = given
    theirs._session.set_default_client_config(
        AioConfig(retries={"mode": "adaptive"}, defaults_mode="auto", read_timeout=1)
    )
    options: Any = {"endpoint_url": stream.server.endpoint_url, "session": given}
    async with open_kinesis_client(stream="orders", region="us-east-1", **options) as client:
        kinesis: Any = client
        control, reading = kinesis._control.meta.config, kinesis._reading.meta.config
    assert (control.retries, reading.retries) == (
        {"mode": "standard", "total_max_attempts": 3},
        {"mode": "standard", "total_max_attempts": 1},
    )
    assert reading.read_timeout is None
