"""Read the properties file that Kafka's own tools use to reach a cluster.

The tools take it as `--command-config` or `--consumer.config`, so that passwords stay in a file.
Names of librdkafka are read too, where they have the meaning of a name of the Java client. Amazon
MSK knows users by IAM: there a token takes the place of a password.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from fanout._exports import naming_extras
from fanout.core.error_text import text_of
from fanout.core.sentence import Option, Sentence
from fanout.errors import OptionError
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

MSK_IAM: Final = "AWS_MSK_IAM"
"""The mechanism of Kafka's own tools with Amazon's library for MSK."""

# https://docs.aws.amazon.com/msk/latest/developerguide/msk-get-bootstrap-brokers.html
_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")

_LARGEST: Final = 1024 * 1024

# Names of the Java client and of librdkafka, with the option of `Security` for each.
_NAMES: Final = {
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "ssl.truststore.location": "ca_file",
    "ssl.ca.location": "ca_file",
    "ssl.keystore.location": "certificate_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
}
_LOGIN: Final = "sasl.jaas.config"
# The options of `Security` that each password belongs to.
_OWNERS: Final = {
    "password": frozenset({"username"}),
    "key_password": frozenset({"certificate_file", "key_file"}),
}
_STORES: Final = {
    "ssl.truststore.location": "ssl.truststore.type",
    "ssl.keystore.location": "ssl.keystore.type",
}
_LOGIN_MODULES: Final = ("PlainLoginModule", "ScramLoginModule")
# What Amazon's library for MSK wants in the file besides the mechanism.
_IAM_MODULE: Final = "IAMLoginModule"
_HANDLER: Final = "sasl.client.callback.handler.class"
_IAM_HANDLER: Final = "IAMClientCallbackHandler"

_LINE: Final = re.compile(r"(?P<name>(?:\\.|[^\\=:\s])+)\s*[=:]?\s*(?P<value>.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LOGIN_OPTION: Final = re.compile(r'(username|password)\s*=\s*"((?:\\.|[^"\\])*)"')


@final
@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The brokers, None where neither caller nor file names any, and the security of a cluster."""

    bootstrap_servers: str | None
    security: Security


def read_client_properties(
    path: str | Path | None,
    *,
    servers: str | None = None,
    insecure: bool = False,
    options: Mapping[str, str] = MappingProxyType({}),
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> ClientProperties:
    """Read a properties file of a Kafka client, or take Kafka's defaults without a path. It blocks.

    Settings of other kinds are ignored, as Kafka's own tools ignore unknown ones. As in Kafka, the
    protocol is PLAINTEXT where none is named; here it may only be used to this machine, unless
    `insecure`. `servers` and `options` of `Security` come before the settings of the file. Where
    neither names a protocol, a username or AWS_MSK_IAM selects SASL_SSL, and a certificate SSL.
    `secrets` are the `password`, `key_password` and `token` of the environment; what the protocol
    or the mechanism does not need is ignored. A password of the file comes before them, unless
    `options` name another user, certificate or key.

    Raises:
        OptionError: If it cannot be read, has a setting that is not supported, or contradicts the
            options. The error names what comes from the file by the file's own names.
        SetupError: The mechanism is AWS_MSK_IAM, and its library is not installed.
    """
    found = {} if path is None else _parse(_text(Path(path)))
    servers = servers or found.get("bootstrap.servers") or None
    _check(found, path)
    login = _login(found[_LOGIN], path) if _LOGIN in found else {}
    named = {name: value for name, value in found.items() if name in _NAMES and value}
    settings: dict[str, Any] = {"protocol": _default_protocol(options)} | login
    settings |= {_NAMES[name]: value for name, value in named.items()} | dict(options)
    if path and settings["protocol"].startswith("SASL_") and "mechanism" not in settings:
        raise OptionError(f"{path}: name the sasl.mechanism, such as SCRAM-SHA-512")
    # A password belongs to the user or key that is named beside it.
    kept = {name for name, owners in _OWNERS.items() if not owners & options.keys()}
    environment = _needed(secrets, settings, servers)
    settings |= {
        name: value
        for name, value in environment.items()
        if name not in kept or not settings.get(name)
    }
    try:
        security = _security(settings, insecure=insecure)
    except OptionError as error:
        if path is None:
            raise
        words = {name: f"the {name} in {_LOGIN}" for name in login}
        words |= {_NAMES[name]: name for name in named}
        of_file = {name: words[name] for name in words if name not in options}
        sentence = Sentence(error).in_words(lambda option: _in_file(option, of_file))
        raise OptionError(f"{path}: ", sentence) from error
    return ClientProperties(servers, security)


def _in_file(option: Option, names: Mapping[str, str]) -> str:
    """Return the file's name of an option; other options, and `a password`, are the caller's."""
    name = names.get(option.name)
    if name is None or (option.value is None and option != option.name):
        return option
    return name if option.value is None else f"{name}={option.value}"


def _check(found: Mapping[str, str], path: object) -> None:
    """Refuse settings of a file that cannot be followed here."""
    for name in found:
        if name.startswith(("sasl.", "ssl.")) and not (_is_known(name) or name == _HANDLER):
            # An ignored setting could make the connection less safe than intended.
            raise OptionError(f"{path}: {name} is not supported; supported are {_known()}")
    for store, kind in _STORES.items():
        if store in found and found.get(kind, "JKS").upper() != "PEM":
            raise OptionError(
                f"{path}: {store} must be a PEM file, declared by {kind}=PEM: Java's key stores "
                f"cannot be read; `keytool` and `openssl pkcs12` convert them to PEM"
            )
    if not found.get(_HANDLER, _IAM_HANDLER).endswith(_IAM_HANDLER):
        raise OptionError(f"{path}: {_HANDLER} is Java, and cannot run here; leave it out")


def _security(settings: Mapping[str, Any], *, insecure: bool) -> Security:
    plain = insecure and not settings["protocol"].endswith("SSL")
    if settings.get("mechanism") != MSK_IAM:
        return Security(**settings, insecure=plain)
    if "username" in settings:
        raise OptionError(
            Option("mechanism", MSK_IAM),
            Sentence.of(" takes the credentials of AWS, so leave {username} out"),
        )
    return Security(**{**settings, "mechanism": "OAUTHBEARER"}, insecure=plain)


def _default_protocol(options: Mapping[str, str]) -> str:
    if "username" in options or options.get("mechanism") == MSK_IAM:
        return "SASL_SSL"
    return "SSL" if options.keys() & {"ca_file", "certificate_file"} else "PLAINTEXT"


def _needed(
    secrets: Mapping[str, str], settings: Mapping[str, str], servers: str | None
) -> dict[str, Any]:
    """Return the secrets that the protocol and the mechanism need, as options of `Security`."""
    needed: dict[str, Any] = {name: value for name, value in secrets.items() if value}
    token, password = needed.pop("token", None), needed.pop("password", None)
    if "certificate_file" not in settings:
        needed.pop("key_password", None)
    if not settings["protocol"].startswith("SASL_"):
        return needed
    if settings.get("mechanism") == MSK_IAM:
        return needed | {"token": msk_iam_token(servers)}
    if settings.get("mechanism") != "OAUTHBEARER":
        return needed | ({} if password is None else {"password": password})

    async def give_token() -> str:
        return str(token)

    return needed | ({} if token is None else {"token": give_token})


def _is_known(name: str) -> bool:
    return name in _NAMES or name == _LOGIN or name in _STORES.values()


def _known() -> str:
    return ", ".join(sorted({*_NAMES, _LOGIN, *_STORES.values()}))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise OptionError(f"{path} is not text in UTF-8") from error


def _parse(text: str) -> Mapping[str, str]:
    """Read the format of `java.util.Properties`."""
    found = {}
    lines = (line.lstrip() for line in text.splitlines())
    for line in lines:
        if not line or line[0] in "#!":
            continue
        while _goes_on(line):
            line = line[:-1] + next(lines, "")  # noqa: PLW2901 - it grows
        if (match := _LINE.fullmatch(line)) is not None:
            found[_unescaped(match["name"])] = _unescaped(match["value"])
    return found


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2])

    return _ESCAPE.sub(one, text)


def _login(text: str, path: object) -> dict[str, str]:
    """Read the user and the password of a login module; errors never quote its content."""
    module = re.split(r"[\s;]", text.strip())[0].rpartition(".")[2]
    if module == _IAM_MODULE:
        if "=" in text:
            raise OptionError(
                f"{path}: {_LOGIN} has options of {_IAM_MODULE}, which are not read: name the role "
                "in a profile of AWS's configuration, and the profile in AWS_PROFILE"
            )
        return {}
    if module not in _LOGIN_MODULES:
        raise OptionError(
            f"{path}: {_LOGIN} must name one of {' and '.join(_LOGIN_MODULES)}, with a username "
            f"and a password, or {_IAM_MODULE} for {MSK_IAM}"
        )
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LOGIN_OPTION.findall(text)}


def msk_iam_token(servers: str | None) -> Callable[[], Awaitable[str]]:
    """Return a function that signs a token by the credentials of AWS's default chain. It blocks.

    A token is signed on this machine, and is valid for 15 minutes; the broker checks it. The region
    is the one in the names of the brokers, else that of the environment or of AWS's configuration.

    Raises:
        OptionError: No region is known.
        SetupError: The signer of MSK is not installed.
    """
    with naming_extras(MSK_IAM):
        from aiokafka.errors import AuthenticationFailedError  # noqa: PLC0415 - optional extras
        from aws_msk_iam_sasl_signer.MSKAuthTokenProvider import (  # noqa: PLC0415
            generate_auth_token,
        )
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    region = _region(servers or "")

    async def token() -> str:
        try:
            signed, _ = await asyncio.to_thread(generate_auth_token, region)
        except BotoCoreError as error:
            raise AuthenticationFailedError(
                f"{MSK_IAM} cannot use the credentials of AWS: {text_of(error)}"
            ) from error
        except (AttributeError, ValueError) as error:  # the signer reads those of None
            raise AuthenticationFailedError(
                f"{MSK_IAM} finds no credentials of AWS: set AWS_PROFILE, or AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, or run where a role is attached"
            ) from error
        return str(signed)

    return token


def _region(servers: str) -> str:
    from botocore.session import Session  # noqa: PLC0415 - an optional extra

    if match := _REGION.search(servers):
        return match[1]
    region = os.environ.get("AWS_REGION") or Session().get_config_variable("region")
    if not region:
        raise OptionError(
            f"{MSK_IAM} needs a region, and the names of the brokers have none: set AWS_REGION"
        )
    return str(region)
