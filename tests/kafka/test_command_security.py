"""Commands, as processes, reach a broker that asks for a user, a token or a certificate."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.kafka.certificates import KEY_PASSWORD
from tests.kafka.msk import KEYS, REGION, run_msk
from tests.kafka.secured import PASSWORD, WRONG, token
from tests.support.commands import fanout
from tests.support.kafka.topics import new_topic

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker
    from tests.kafka.secured import Secured

EMPTY = ("transactions", "list", "--json", "--checkpoint")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "checkpoint" / "fanout").mkdir(parents=True)
    return [*EMPTY, str(tmp_path / "checkpoint")]


@pytest.mark.long
def test_the_password_comes_from_the_environment(cluster: Secured, command: list[str]) -> None:
    command += ["--bootstrap-servers", str(cluster.users), "--ca-file", str(cluster.files.ca)]
    command += ["--username", "reader"]
    for mechanism in ([], ["--mechanism", "PLAIN"]):
        done = fanout(*command, *mechanism, KAFKA_PASSWORD=PASSWORD)
        assert done.returncode == 0, done.stderr
    done = fanout(*command, KAFKA_PASSWORD=WRONG)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "refuses the credentials" in done.stderr
    assert WRONG not in done.stderr


@pytest.mark.long
def test_the_token_comes_from_the_environment(cluster: Secured, command: list[str]) -> None:
    command += ["--bootstrap-servers", str(cluster.users), "--ca-file", str(cluster.files.ca)]
    command += ["--protocol", "SASL_SSL", "--mechanism", "OAUTHBEARER"]
    done = fanout(*command, KAFKA_TOKEN=asyncio.run(token()))
    assert done.returncode == 0, done.stderr


@pytest.mark.long
async def test_a_token_for_amazon_msk_is_signed_with_the_credentials_of_aws(
    kafka_broker: KafkaBroker,
) -> None:
    topic = await new_topic(kafka_broker)
    topic.put(3)
    async with run_msk(kafka_broker) as msk:
        command = ["tail", f"kafka://{topic.name}", "--bootstrap-servers", msk.address]
        # On this machine there is no TLS, and the name of the broker has no region.
        command += ["--mechanism", "AWS_MSK_IAM", "--protocol", "SASL_PLAINTEXT"]
        command += ["--since", "1h", "--max", "3"]
        done = await asyncio.to_thread(fanout, *command, AWS_REGION=REGION, **KEYS)
        assert (done.returncode, done.stdout.count("\n")) == (0, 3), done.stderr
        keys = KEYS | {"AWS_SECRET_ACCESS_KEY": WRONG}
        done = await asyncio.to_thread(fanout, *command, AWS_REGION=REGION, **keys)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "the broker refuses the credentials, by OAUTHBEARER: Access denied" in done.stderr
        assert [one for one in (WRONG, *msk.tokens) if one in done.stderr] == []
        done = await asyncio.to_thread(fanout, *command, AWS_REGION=REGION)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "AWS_MSK_IAM finds no credentials of AWS: set AWS_PROFILE, or " in done.stderr


@pytest.mark.long
def test_a_certificate_with_an_encrypted_key_is_used(cluster: Secured, command: list[str]) -> None:
    files = cluster.files
    command += ["--bootstrap-servers", str(cluster.certificates), "--ca-file", str(files.ca)]
    command += ["--certificate-file", str(files.reader), "--key-file", str(files.reader_key)]
    done = fanout(*command, KAFKA_KEY_PASSWORD=KEY_PASSWORD)
    assert done.returncode == 0, done.stderr
    done = fanout(*command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "its --key-file or its KAFKA_KEY_PASSWORD cannot be used" in done.stderr


@pytest.mark.long
def test_a_properties_file_says_everything(
    cluster: Secured, command: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={cluster.users}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config=PlainLoginModule required username="reader" password="{PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={cluster.files.ca}\n"
    )
    done = fanout(*command, KAFKA_COMMAND_CONFIG=str(path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["transactions"] == []
