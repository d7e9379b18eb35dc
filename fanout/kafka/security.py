"""The security of connections to Kafka brokers: TLS and SASL."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias, final, get_args

from fanout.core.error_text import text_of
from fanout.core.option_checks import is_loopback, one_of
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from os import PathLike

    _File: TypeAlias = str | PathLike[str]

SecurityProtocol: TypeAlias = Literal["SASL_SSL", "SSL", "SASL_PLAINTEXT", "PLAINTEXT"]
Mechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_TEXTS = ("username", "password", "key_password")
_SASL = ("mechanism", "username", "password", "token")
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
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise OptionError(f"{name} must be a string, not {type(value).__name__}")
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
                f"the Kafka broker on {host} would be used without TLS: use SASL_SSL or "
                "SSL, or pass insecure=True if the network is trusted"
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
                f"ca_file={str(self.ca_file)!r} cannot be used: {text_of(error)}"
            ) from error
        if self.certificate_file is not None:
            try:
                # Without a password OpenSSL would prompt for one at the terminal, and block.
                context.load_cert_chain(
                    self.certificate_file, self.key_file, password=self.key_password or ""
                )
            except OSError as error:
                raise OptionError(
                    f"certificate_file={str(self.certificate_file)!r}, its key_file or its "
                    f"key_password cannot be used: {text_of(error)}"
                ) from error
        return context

    def _check_sasl(self) -> None:
        given = self._given(*_SASL)
        if self.sasl is None:
            if given:
                raise OptionError(
                    f"protocol={self.protocol!r} has no SASL, so leave {' and '.join(given)} out, "
                    f"or use SASL_{self.protocol}"
                )
        elif self.sasl == "OAUTHBEARER":
            if self.token is None:
                raise OptionError("mechanism='OAUTHBEARER' needs token=")
            if not callable(self.token) or isinstance(self.token, type):
                raise OptionError("token must be an async function that returns a token")
            if passwords := self._given("username", "password"):
                raise OptionError(
                    f"OAUTHBEARER takes a token, so leave {' and '.join(passwords)} out"
                )
        elif self.token is not None:
            raise OptionError(
                f"mechanism={self.sasl!r} takes a username and a password, so leave token out, or "
                "use OAUTHBEARER"
            )
        elif not (self.username and self.password):
            raise OptionError(
                f"protocol={self.protocol!r} needs a username and a password, or a token; for a "
                "broker without users there is protocol='SSL', and on this machine 'PLAINTEXT'"
            )

    def _check_tls(self) -> None:
        given = self._given(*_FILES, "ssl_context")
        if not self.tls and given:
            raise OptionError(
                f"protocol={self.protocol!r} has no TLS, so leave {' and '.join(given)} out, or "
                f"use {self.protocol.replace('PLAINTEXT', 'SSL')}"
            )
        if self.tls and self.insecure:
            raise OptionError(
                "insecure=True allows a plaintext protocol, and this one has TLS: its certificates "
                "are always checked, unless an ssl_context of your own says otherwise"
            )
        if self.ssl_context is not None and len(given) > 1:
            raise OptionError(
                f"ssl_context stands instead of files, so leave {' and '.join(given[:-1])} out"
            )
        if self.ssl_context is not None and not isinstance(self.ssl_context, ssl.SSLContext):
            raise OptionError("ssl_context must be an ssl.SSLContext")
        if self.certificate_file is None and (keys := self._given("key_file", "key_password")):
            raise OptionError(
                f"{' and '.join(keys)} belongs to a certificate_file, which is missing"
            )

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]
