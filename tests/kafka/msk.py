"""A listener that lets in whom a cluster of Amazon MSK would, in front of a broker without users.

It takes the place of MSK's own listener for IAM (SASL with OAUTHBEARER): it computes the signature
of each token anew, by the documentation of Signature Version 4, and passes on the rest.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote, urlsplit

from fanout.kafka.cluster import parse_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.testing.kafka.broker import KafkaBroker

REGION: Final = "eu-west-1"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "AKIACANARY", "AWS_SECRET_ACCESS_KEY": "canary-secret"}

# Numbers of requests, and the code of a refusal: https://kafka.apache.org/protocol
_HANDSHAKE, _AUTHENTICATE, _REFUSED = 17, 36, 58
# The client's first message (RFC 7628, section 3.1).
_BEARER: Final = re.compile(rb"auth=Bearer ([^\x01]+)\x01")


class Msk:
    """The listener, and what it has seen."""

    def __init__(self, broker: KafkaBroker) -> None:
        (self._broker,) = parse_servers(broker.bootstrap_servers)
        self.tokens: list[str] = []
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ask a client for its token, then pass on requests and responses."""
        to_broker = None
        try:
            from_broker, to_broker = await asyncio.open_connection(
                self._broker.host, self._broker.port
            )
            while (request := await _frame(reader))[:2] != _HANDSHAKE.to_bytes(2):
                to_broker.write(_framed(request))
                writer.write(_framed(await _frame(from_broker)))
            writer.write(_framed(request[4:8] + b"\0\0" + b"\0\0\0\1" + _string(b"OAUTHBEARER")))
            request = await _frame(reader)
            assert request[:2] == _AUTHENTICATE.to_bytes(2)
            if not self._lets_in(request):
                writer.write(_answer(request, _REFUSED, _string(b"Access denied")))
                return
            writer.write(_answer(request, 0, b"\xff\xff"))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_on(reader, to_broker))
                while True:
                    writer.write(_framed(self._ours(await _frame(from_broker))))
        except* (EOFError, OSError):
            pass
        finally:
            writer.transport.abort()
            if to_broker is not None:
                to_broker.transport.abort()

    def _lets_in(self, request: bytes) -> bool:
        match = _BEARER.search(request)
        assert match is not None
        token = match[1].decode()
        self.tokens.append(token)
        return is_signed(token)

    def _ours(self, response: bytes) -> bytes:
        """Return a response in which the broker's address is that of this listener."""
        host = self._broker.host.encode()
        return response.replace(host + self._broker.port.to_bytes(4), host + self.port.to_bytes(4))


@asynccontextmanager
async def run_msk(broker: KafkaBroker) -> AsyncIterator[Msk]:
    """Run such a listener on a free port."""
    msk = Msk(broker)
    async with await asyncio.start_server(msk.serve, "127.0.0.1", 0) as server:
        msk.port = server.sockets[0].getsockname()[1]
        yield msk


def is_signed(token: str) -> bool:
    """Return whether a token is a URL that was signed with KEYS for REGION, and is valid now.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    signature = query.pop("X-Amz-Signature")
    query.pop("User-Agent")  # it comes after the signature
    at = query["X-Amz-Date"]
    scope = f"{at[:8]}/{REGION}/kafka-cluster/aws4_request"
    expected = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Credential": f"{KEYS['AWS_ACCESS_KEY_ID']}/{scope}",
        "X-Amz-SignedHeaders": "host",
    }
    if url.netloc != f"kafka.{REGION}.amazonaws.com" or not expected.items() <= query.items():
        return False
    pairs = sorted((quote(name, safe=""), quote(value, safe="")) for name, value in query.items())
    text = "&".join(map("=".join, pairs))
    canonical = f"GET\n/\n{text}\nhost:{url.netloc}\n\nhost\n{hashlib.sha256().hexdigest()}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{KEYS['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"):
        key = hmac.digest(key, part.encode(), "sha256")
    begins = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ends = begins + timedelta(seconds=int(query["X-Amz-Expires"]))
    return hmac.compare_digest(key.hex(), signature) and begins <= datetime.now(UTC) < ends


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


def _answer(request: bytes, code: int, message: bytes) -> bytes:
    """Return the response to SaslAuthenticate, version 0 or 1."""
    version, number = int.from_bytes(request[2:4]), request[4:8]
    assert version in {0, 1}
    lifetime = bytes(8) if version else b""
    return _framed(number + code.to_bytes(2) + message + bytes(4) + lifetime)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(_framed(await _frame(reader)))
