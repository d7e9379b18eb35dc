"""The security of connections to Kafka brokers: TLS and SASL."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias, final, get_args

from fanout.core.option_checks import check_strings, is_loopback, one_of
from fanout.core.sentence import Option, Sentence, Suggestion, all_of
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from os import PathLike

    _File: TypeAlias = str | PathLike[str]

SecurityProtocol: TypeAlias = Literal["SASL_SSL", "SSL", "SASL_PLAINTEXT", "PLAINTEXT"]
Mechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_SASL = ("mechanism", "username", "password", "token")
_LOGIN = Sentence.of("{username:a username} and {password:a password}")
_OR_PASS = Suggestion.of(", or pass {insecure=True} if the network is trusted")
_FILES = ("ca_file", "certificate_file", "key_file", "key_password")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS and SASL for the connections to a Kafka cluster.

    No secret is in its repr, and it cannot be pickled.

    Args:
        protocol: `"SASL_SSL"`; `"SSL"` without SASL, where TLS or a client certificate is enough;
            `"SASL_PLAINTEXT"` or `"PLAINTEXT"` for brokers on this machine.
        mechanism: `"SCRAM-SHA-512"`, `"SCRAM-SHA-256"` or `"PLAIN"` with a user and a password,
            or `"OAUTHBEARER"` with a token. None is SCRAM-SHA-512 without a token.
        username: The user.
        password: The user's password.
        token: An async function that returns a valid OAuth token; it is called for each new
            connection, and an error that it raises is retried like one of the network.
        ca_file: The certificates (PEM) that sign those of the brokers; None uses the system's.
        certificate_file: The client certificate (PEM), where brokers require one.
        key_file: Its key (PEM); None where the certificate's file holds it.
        key_password: The password of an encrypted key.
        ssl_context: A context of the user's, instead of these files.
        insecure: Allow a plaintext protocol to a host that is not this machine.

    Raises:
        OptionError: If an option is malformed or missing, or two contradict each other.
    """

    protocol: SecurityProtocol = "SASL_SSL"
    mechanism: Mechanism | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: Callable[[], Awaitable[str]] | None = field(default=None, repr=False)
    ca_file: _File | None = None
    certificate_file: _File | None = None
    key_file: _File | None = None
    key_password: str | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    insecure: bool = False

    def __post_init__(self) -> None:
        one_of("protocol", self.protocol, *get_args(SecurityProtocol))
        if self.mechanism is not None:
            one_of("mechanism", self.mechanism, *get_args(Mechanism))
        check_strings(self, "username", "password", "key_password")
        self._check_sasl()
        self._check_tls()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Security is not pickled, because its secrets would be readable: make it where it is "
            "used"
        )

    @property
    def sasl(self) -> Mechanism | None:
        """The SASL mechanism; None where the protocol has no SASL."""
        if not self.protocol.startswith("SASL_"):
            return None
        return self.mechanism or ("SCRAM-SHA-512" if self.token is None else "OAUTHBEARER")

    @property
    def tls(self) -> bool:
        """Whether the connections are encrypted."""
        return self.protocol.endswith("SSL")

    def check_host(self, host: str) -> None:
        """Accept TLS to anywhere, and plaintext to this machine or where it is allowed.

        Raises:
            OptionError: Bytes would leave this machine without TLS.
        """
        if not (self.tls or self.insecure or is_loopback(host)):
            raise OptionError(
                f"the Kafka broker on {host} would be used without TLS: use SASL_SSL or SSL",
                _OR_PASS,
            )

    def create_context(self) -> ssl.SSLContext | None:
        """Return the SSL context, or None without TLS. It reads files: call it in a thread.

        Raises:
            OptionError: A file cannot be used.
        """
        if not self.tls:
            return None
        if self.ssl_context is not None:
            return self.ssl_context
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise OptionError(
                Option("ca_file", str(self.ca_file)), " cannot be used: ", error
            ) from error
        if self.certificate_file is not None:
            try:
                # Without a password OpenSSL would prompt for one at the terminal, and block.
                context.load_cert_chain(
                    self.certificate_file, self.key_file, password=self.key_password or ""
                )
            except OSError as error:
                raise OptionError(
                    Option("certificate_file", str(self.certificate_file)),
                    Sentence.of(", its {key_file} or its {key_password} cannot be used: "),
                    error,
                ) from error
        return context

    def _check_sasl(self) -> None:
        given = self._given(*_SASL)
        if self.sasl is None:
            if given:
                raise OptionError(
                    Option("protocol", self.protocol),
                    " has no SASL, so leave ",
                    all_of(given),
                    f" out, or use SASL_{self.protocol}",
                )
        elif self.sasl == "OAUTHBEARER":
            if self.token is None:
                raise OptionError(
                    Option("mechanism", self.sasl), Sentence.of(" needs {token:token=}")
                )
            if not callable(self.token) or isinstance(self.token, type):
                raise OptionError(
                    Option("token"), " must be an async function that returns a token"
                )
            if passwords := self._given("username", "password"):
                raise OptionError(
                    Sentence.of("OAUTHBEARER takes {token:a token}, so leave "),
                    all_of(passwords),
                    " out",
                )
        elif self.token is not None:
            raise OptionError(
                Option("mechanism", self.sasl),
                " takes ",
                _LOGIN,
                Sentence.of(", so leave {token} out, or use OAUTHBEARER"),
            )
        elif not (self.username and self.password):
            raise OptionError(
                Option("protocol", self.protocol),
                " needs ",
                _LOGIN,
                Sentence.of(
                    ", or {token:a token}; for a broker without users there is {protocol='SSL'}, "
                    "and on this machine 'PLAINTEXT'"
                ),
            )

    def _check_tls(self) -> None:
        given = self._given(*_FILES, "ssl_context")
        if not self.tls and given:
            raise OptionError(
                Option("protocol", self.protocol),
                " has no TLS, so leave ",
                all_of(given),
                f" out, or use {self.protocol.replace('PLAINTEXT', 'SSL')}",
            )
        if self.tls and self.insecure:
            raise OptionError(
                Sentence.of(
                    "{insecure=True} allows a plaintext protocol, and this one has TLS: its "
                    "certificates are always checked"
                ),
                Suggestion.of(", unless an {ssl_context} of your own says otherwise"),
            )
        if self.ssl_context is not None and len(given) > 1:
            raise OptionError(
                Option("ssl_context"),
                " stands instead of files, so leave ",
                all_of(given[:-1]),
                " out",
            )
        if self.ssl_context is not None and not isinstance(self.ssl_context, ssl.SSLContext):
            raise OptionError(Option("ssl_context"), " must be an ssl.SSLContext")
        if self.certificate_file is None and (keys := self._given("key_file", "key_password")):
            raise OptionError(
                all_of(keys),
                Sentence.of(" belongs to {certificate_file:a certificate_file}, which is missing"),
            )

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]
