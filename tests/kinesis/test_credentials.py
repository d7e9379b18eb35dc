"""Credentials that change while a stream runs, from where people keep them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import aioboto3
import aiobotocore.session
import pytest
from aiobotocore.credentials import AioCredentialResolver, AioCredentials
from aiohttp import web
from aiohttp.test_utils import TestServer
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

from fanout.core.policy import Phase
from fanout.kinesis.aws.client_config import pinned_config
from fanout.kinesis.aws.role import AssumedRole
from fanout.kinesis.aws.session import open_session
from fanout.kinesis.policy import KinesisRemedy, judge
from fanout.testing.faults import EndEarly, RevokeKey
from fanout.testing.kinesis.credentials import REGION
from tests.support.kinesis.reading import Reader, Stream, client, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CANARY = "canary-secret-key"
ROLE = "arn:aws:iam::111122223333:role/reader"

pytestmark = pytest.mark.usefixtures("aws", "nowhere")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the keys of the environment out of a test."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)


class File:
    """A credentials file with one key, and a configuration that may name a program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "credentials"
        self.config = folder / "config"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self.path))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(self.config))
        self.config.write_text("")

    def write(self, key: str, profile: str = "default") -> None:
        self.path.write_text(
            f"[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = {CANARY}\n"
        )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    file = File(tmp_path, monkeypatch)
    file.write("OLD")
    return file


async def key_of(session: aioboto3.Session) -> str:
    frozen = await (await session.get_credentials()).get_frozen_credentials()
    return str(frozen.access_key)


async def renew(session: aioboto3.Session) -> str:
    """Renew a session's credentials; return the key that it signs with then."""
    await (await session.get_credentials()).renew()
    return await key_of(session)


@pytest.mark.parametrize("passed", [False, True])
async def test_the_files_of_botocore_are_read_once(
    file: File, monkeypatch: pytest.MonkeyPatch, *, passed: bool
) -> None:
    given = aioboto3.Session() if passed else None
    await open_session(given, REGION, None)

    def refuse(*_: object) -> None:
        pytest.fail("a file is read again")

    monkeypatch.setattr("botocore.loaders.JSONFileLoader.load_file", refuse)
    monkeypatch.setattr("botocore.session.Session", refuse)  # what they are read with
    file.write("NEW")
    session, _ = await open_session(given, REGION, None)
    config = pinned_config(attempts=1)
    async with session.client("kinesis", region_name=REGION, config=config):
        assert await key_of(session) == "NEW"


async def test_a_credentials_file_is_read_again(file: File) -> None:
    session, _ = await open_session(None, REGION, None)
    assert await key_of(session) == "OLD"
    file.write("NEW")
    assert await key_of(session) == "OLD"
    assert await renew(session) == "NEW"


@pytest.mark.long
async def test_the_file_is_read_again_for_a_session_with_a_profile(file: File) -> None:
    file.write("OLD", profile="reader")
    given = aioboto3.Session(profile_name="reader")
    session, _ = await open_session(given, REGION, None)
    file.write("NEW", profile="reader")
    assert await renew(session) == "NEW"


async def test_the_environment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    session, _ = await open_session(None, REGION, None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEW")
    assert await renew(session) == "NEW"


async def test_a_profile_whose_keys_are_those_of_another_is_read_again(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = iter(["ROLE1", "ROLE2"])
    signed: list[str] = []

    async def sts(request: web.Request) -> web.Response:
        signed.append(request.headers["Authorization"])
        return web.Response(text=role_credentials(next(keys)), content_type="text/xml")

    file.config.write_text(
        f"[profile reader]\nrole_arn = {ROLE}\nsource_profile = default\nregion = {REGION}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "reader")
    async with serving(sts) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        session, _ = await open_session(None, None, None)
        assert await key_of(session) == "ROLE1"
        file.write("NEW")
        assert await renew(session) == "ROLE2"
    assert ["OLD" in each for each in signed] == [True, False]
    assert "NEW" in signed[1]


async def test_a_program_that_tells_the_keys_is_asked_again(file: File, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    file.path.write_text("")
    program = f"{sys.executable} -c \"print(open('{answer}').read())\""
    file.config.write_text(f"[default]\ncredential_process = {program}\n")
    answer.write_text(json.dumps({"Version": 1, "AccessKeyId": "OLD", "SecretAccessKey": CANARY}))
    session, _ = await open_session(None, REGION, None)
    assert await key_of(session) == "OLD"
    answer.write_text(json.dumps({"Version": 1, "AccessKeyId": "NEW", "SecretAccessKey": CANARY}))
    assert await renew(session) == "NEW"


async def test_a_program_that_tells_no_keys_when_they_expire_is_a_refusal_and_is_not_quoted(
    file: File, tmp_path: Path
) -> None:
    answer = tmp_path / "answer.json"
    file.path.write_text("")
    program = f"{sys.executable} -c \"print(open('{answer}').read())\""
    file.config.write_text(f"[default]\ncredential_process = {program}\n")
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    keys = {"Version": 1, "AccessKeyId": "OLD", "SecretAccessKey": CANARY, "Expiration": soon}
    answer.write_text(json.dumps(keys))
    session, _ = await open_session(None, REGION, None)
    answer.write_text(f"{CANARY} is not JSON")
    with pytest.raises(CredentialRetrievalError, match="JSONDecodeError") as caught:
        await key_of(session)
    assert caught.value.__context__ is None
    assert judge(caught.value, Phase.SUBSCRIBE, first=False) is KinesisRemedy.REFRESH


def role_credentials(key: str) -> str:
    expiration = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
      <AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>
      <SecretAccessKey>{CANARY}</SecretAccessKey><SessionToken>token</SessionToken>
      <Expiration>{expiration}</Expiration></Credentials></AssumeRoleResult>
    </AssumeRoleResponse>"""


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/", handler)
    async with TestServer(application) as server:
        yield str(server.make_url("/"))


async def test_a_role_is_assumed_again_with_keys_that_were_found_anew(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = iter(["ROLE1", "ROLE2"])
    signed: list[str] = []

    async def sts(request: web.Request) -> web.Response:
        signed.append(request.headers["Authorization"])
        return web.Response(text=role_credentials(next(keys)), content_type="text/xml")

    async with serving(sts) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        session, _ = await open_session(None, REGION, AssumedRole(arn=ROLE))
        assert await key_of(session) == "ROLE1"
        file.write("NEW")
        assert await renew(session) == "ROLE2"
    assert "NEW" in signed[1]
    assert "OLD" not in signed[1]


async def test_keys_that_were_passed_to_a_session_stay(file: File) -> None:
    given = aioboto3.Session(aws_access_key_id="GIVEN", aws_secret_access_key=CANARY)
    session, _ = await open_session(given, REGION, None)
    file.write("NEW")
    assert await renew(session) == "GIVEN"


async def test_a_provider_of_the_users_own_is_asked_again() -> None:
    keys = iter(["OLD", "NEW"])

    class Provider:
        METHOD = CANONICAL_NAME = "own"

        async def load(self) -> AioCredentials:
            return AioCredentials(next(keys), CANARY)

    inner = aiobotocore.session.AioSession()
    inner.register_component("credential_provider", AioCredentialResolver([Provider()]))
    session, _ = await open_session(aioboto3.Session(botocore_session=inner), REGION, None)
    assert await key_of(session) == "OLD"
    assert await renew(session) == "NEW"


async def test_a_session_that_is_passed_in_is_not_changed(file: File) -> None:
    given = aioboto3.Session()
    before = dict(vars(given._session))
    session, _ = await open_session(given, REGION, None)
    file.write("NEW")
    await renew(session)
    assert given._session._credentials is None
    assert vars(given._session).keys() == before.keys()
    assert session is not given
    assert session.events is given.events


async def test_a_session_that_was_opened_is_opened_again_as_it_is(file: File) -> None:
    session, region = await open_session(None, REGION, None)
    again, _ = await open_session(session, region, None)
    file.write("NEW")
    assert again is session


async def test_credentials_that_are_gone_are_kept(file: File) -> None:
    session, _ = await open_session(None, REGION, None)
    file.path.unlink()
    with pytest.raises(NoCredentialsError):
        await renew(session)
    assert await key_of(session) == "OLD"


async def test_credentials_show_where_they_are_from_and_nothing_else(file: File) -> None:
    session, _ = await open_session(None, REGION, None)
    credentials = await session.get_credentials()
    assert repr(credentials) == "<RenewableCredentials from shared-credentials-file>"
    assert file.path.exists()


def keys_in_errors(reader: Reader, caplog: pytest.LogCaptureFixture) -> bool:
    causes = [reader.failure, *reader.causes]
    return CANARY in caplog.text or any(CANARY in f"{cause!r} {cause}" for cause in causes)


@pytest.mark.fault("Credentials expire during a subscription")
@pytest.mark.long
@pytest.mark.parametrize("shards", [4])
@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
async def test_a_key_that_is_rotated_in_its_file_is_taken_up_and_nothing_is_lost(
    stream: Stream, file: File, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fanout")
    stream.put(20)
    async with stream.reading(session=None, region=REGION) as reader:
        await reader.has(20)
        stream.inject(RevokeKey(access_key="OLD", code=code), EndEarly(event=None, times=4))
        await reader.until(lambda: reader.kinds.count(code) >= 8)
        file.write("NEW")
        stream.put(20)
        await reader.has(40)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"SubscriptionEndedError", code}
    assert not keys_in_errors(reader, caplog)


@pytest.mark.long
async def test_a_key_that_comes_back_after_long_is_taken_up_by_itself_and_said_loudly(
    stream: Stream, file: File, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put(3)
    async with stream.reading(session=None, region=REGION) as reader:
        await reader.has(3)
        stream.inject(RevokeKey(access_key="OLD"), EndEarly(event=None))
        await reader.until(lambda: reader.kinds.count("UnrecognizedClientException") >= 15)
        file.write("NEW")
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    loud = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(loud) >= 10
    assert "waits for a person" in loud[0].message
    assert "(check that the credentials are valid" in loud[0].message


async def test_a_listing_that_is_refused_takes_up_a_new_key_too(stream: Stream, file: File) -> None:
    async with stream.reading(session=None, region=REGION) as reader:
        stream.put(3)
        await reader.has(3)
        file.write("NEW")
        stream.inject(RevokeKey(access_key="OLD"))
        await eventually(lambda: stream.server.statistics().faults.get("RevokeKey"))
        # Only a listing finds the children, and only with the new key.
        with client(stream) as kinesis:
            await asyncio.to_thread(
                kinesis.split_shard,
                StreamName="orders",
                ShardToSplit="shardId-000000000000",
                NewStartingHashKey=str(2**127),
            )
        stream.put(10)
        await reader.has(13)
    assert reader.log == stream.log
