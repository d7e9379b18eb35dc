from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.errors import OptionError
from fanout.kafka.client_properties import read_client_properties

if TYPE_CHECKING:
    from pathlib import Path

MODULES = "org.apache.kafka.common.security"
SECRET = "canary-password"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def test_the_file_of_a_java_client_is_read(file: Path) -> None:
    file.write_text(
        f"""
        # the usual way
        ! and some
        bootstrap.servers = broker-1:9093,broker-2:9093
        security.protocol=SASL_SSL
        sasl.mechanism:SCRAM-SHA-256
        sasl.jaas.config={MODULES}.scram.ScramLoginModule required \\
            username="etl" \\
            password="pass=\\\\"word\\\\\\\\\\u0041#!";
        ssl.truststore.type PEM
        ssl.truststore.location=/etc/kafka/ca.pem
        request.timeout.ms=1000
        """
    )
    message = read_client_properties(file)
    security = message.security
    assert message.bootstrap_servers == "broker-1:9093,broker-2:9093"
    assert (security.protocol, security.sasl) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (security.username, security.password) == ("etl", 'pass="word\\A#!')
    assert security.ca_file == "/etc/kafka/ca.pem"


def test_the_names_of_librdkafka_are_read(file: Path) -> None:
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanisms=PLAIN\nsasl.username=etl\n"
        f"sasl.password={SECRET}\nssl.ca.location=ca.pem\n"
    )
    security = read_client_properties(file).security
    assert (security.sasl, security.username, security.password) == ("PLAIN", "etl", SECRET)
    assert security.ca_file == "ca.pem"


def test_a_client_certificate_is_read(file: Path) -> None:
    file.write_text(
        "security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location=client.pem\n"
        f"ssl.key.password={SECRET}\n"
    )
    security = read_client_properties(file, insecure=True).security
    assert (security.certificate_file, security.key_password) == ("client.pem", SECRET)
    assert not security.insecure, "it allows plaintext, and this is TLS"


@pytest.mark.parametrize("insecure", [True, False])
def test_without_a_file_it_is_plaintext_as_in_kafka(*, insecure: bool) -> None:
    message = read_client_properties(None, insecure=insecure)
    assert message.bootstrap_servers is None
    assert (message.security.protocol, message.security.insecure) == ("PLAINTEXT", insecure)


MSK = "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\n"
LOGIN = f'sasl.jaas.config={MODULES}.plain.PlainLoginModule required username="etl" '


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("security.protocol=SASL\n", "protocol='SASL' is not understood"),
        (f"{LOGIN}password='{SECRET}';\nsecurity.protocol=SASL_SSL\n", "name the sasl.mechanism"),
        (f'{LOGIN}password="{SECRET}";\n', "protocol='PLAINTEXT' has no SASL"),
        (
            f'security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n{LOGIN}secret="{SECRET}";\n',
            "needs a username and a password",
        ),
        (
            f'{MSK}sasl.jaas.config=x.IAMLoginModule required awsRoleArn="{SECRET}";\n',
            (
                "sasl.jaas.config has options of IAMLoginModule, which are not read: name the role "
                "in a profile of AWS's configuration, and the profile in AWS_PROFILE"
            ),
        ),
        (
            "sasl.client.callback.handler.class=com.example.Handler\n",
            "sasl.client.callback.handler.class is Java, and cannot run here; leave it out",
        ),
        (
            f"{MSK}sasl.username=etl\nbootstrap.servers=b.kafka.eu-west-1.amazonaws.com\n",
            "sasl.mechanism='AWS_MSK_IAM' takes the credentials of AWS, so leave sasl.username out",
        ),
        (
            f'sasl.jaas.config=com.sun.Krb5LoginModule required keyTab="{SECRET}";\n',
            "must name one of PlainLoginModule and ScramLoginModule",
        ),
        ("sasl.jaas.config=\n", "must name one of"),
        ("ssl.truststore.location=trust.jks\n", "ssl.truststore.type=PEM"),
        ("ssl.keystore.type=PKCS12\nssl.keystore.location=key.p12\n", "ssl.keystore.type=PEM"),
        (
            f"ssl.keystore.password={SECRET}\n",
            (
                "ssl.keystore.password is not supported; "
                "supported are sasl.jaas.config, sasl.mechanism"
            ),
        ),
        ("ssl.endpoint.identification.algorithm=\n", "is not supported"),
    ],
)
def test_what_cannot_be_done_here_is_refused_without_telling_a_secret(
    file: Path, text: str, sentence: str
) -> None:
    file.write_text(text)
    with pytest.raises(OptionError) as caught:
        read_client_properties(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(OptionError, match=r"client.properties cannot be read: No such file"):
        read_client_properties(file)
    file.write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"client.properties is not text"):
        read_client_properties(file)
