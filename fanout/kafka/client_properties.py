"""Read the properties file that Kafka's own tools use to reach a cluster.

The tools take it as `--command-config` or `--consumer.config`, so that passwords stay in a file.
Names of librdkafka are read too, where they have the meaning of a name of the Java client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.option_words import in_words_of_caller
from fanout.errors import OptionError
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import Mapping

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

_LINE: Final = re.compile(r"(?P<name>(?:\\.|[^\\=:\s])+)\s*[=:]?\s*(?P<value>.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LOGIN_OPTION: Final = re.compile(r'(username|password)\s*=\s*"((?:\\.|[^"\\])*)"')


@final
@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The settings of a cluster in a properties file.

    Args:
        bootstrap_servers: Brokers to begin with; None where the file names none.
        security: Encryption and authentication.
    """

    bootstrap_servers: str | None
    security: Security


def read_client_properties(
    path: str | Path | None,
    *,
    insecure: bool = False,
    options: Mapping[str, str] = MappingProxyType({}),
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> ClientProperties:
    """Read a properties file of a Kafka client. It blocks.

    Settings of other kinds are ignored, as Kafka's own tools ignore unknown ones. As in Kafka, the
    protocol is PLAINTEXT where none is named; here it may only be used to this machine.

    Args:
        path: The file; None for the defaults of Kafka.
        insecure: Allow a plaintext protocol to a host that is not this machine.
        options: Options of `Security` that come before the settings of the file. Where neither
            names a protocol, a username selects SASL_SSL, and a certificate SSL.
        secrets: The `password`, `key_password` and `token` of the environment. Those that the
            protocol does not need are ignored. A password of the file comes before them, unless
            `options` name another user, certificate or key.

    Raises:
        OptionError: If it cannot be read, has a setting that is not supported, or contradicts the
            options. The error names what comes from the file by the file's own names.
    """
    found = {} if path is None else _parse(_text(Path(path)))
    for name in found:
        if name.startswith(("sasl.", "ssl.")) and not _is_known(name):
            # An ignored setting could make the connection less safe than intended.
            raise OptionError(f"{path}: {name} is not supported; supported are {_known()}")
    for store, kind in _STORES.items():
        if store in found and found.get(kind, "JKS").upper() != "PEM":
            raise OptionError(
                f"{path}: {store} must be a PEM file, declared by {kind}=PEM: Java's key stores "
                f"cannot be read; `keytool` and `openssl pkcs12` convert them to PEM"
            )
    login = _login(found[_LOGIN], path) if _LOGIN in found else {}
    named = {name: value for name, value in found.items() if name in _NAMES and value}
    settings: dict[str, Any] = {"protocol": _default_protocol(options)} | login
    settings |= {_NAMES[name]: value for name, value in named.items()} | dict(options)
    if path and settings["protocol"].startswith("SASL_") and "mechanism" not in settings:
        raise OptionError(f"{path}: name the sasl.mechanism, such as SCRAM-SHA-512")
    # A password belongs to the user or key that is named beside it.
    kept = {name for name, owners in _OWNERS.items() if not owners & options.keys()}
    environment = _needed(secrets, settings)
    settings |= {
        name: value
        for name, value in environment.items()
        if name not in kept or not settings.get(name)
    }
    try:
        security = Security(
            **settings, insecure=insecure and not settings["protocol"].endswith("SSL")
        )
    except OptionError as error:
        if path is None:
            raise
        words = dict.fromkeys(login, _LOGIN) | {_NAMES[name]: name for name in named}
        of_file = {name: words[name] for name in words if name not in options}
        raise OptionError(f"{path}: {in_words_of_caller(str(error), of_file)}") from error
    return ClientProperties(found.get("bootstrap.servers") or None, security)


def _default_protocol(options: Mapping[str, str]) -> str:
    if "username" in options:
        return "SASL_SSL"
    return "SSL" if options.keys() & {"ca_file", "certificate_file"} else "PLAINTEXT"


def _needed(secrets: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the secrets that the protocol and the mechanism need, as options of `Security`."""
    needed: dict[str, Any] = {name: value for name, value in secrets.items() if value}
    token, password = needed.pop("token", None), needed.pop("password", None)
    if "certificate_file" not in settings:
        needed.pop("key_password", None)
    if not settings["protocol"].startswith("SASL_"):
        return needed
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
    module = text.split(maxsplit=1)[0].rpartition(".")[2] if text.strip() else ""
    if module not in _LOGIN_MODULES:
        raise OptionError(
            f"{path}: {_LOGIN} must name one of {' and '.join(_LOGIN_MODULES)}, with a username "
            f"and a password"
        )
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LOGIN_OPTION.findall(text)}
