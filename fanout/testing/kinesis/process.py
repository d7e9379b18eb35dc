"""Run the embedded Kinesis in a process of its own, so that it does not share the caller's GIL.

Both ends of the private way into it are here: `KinesisProcess` posts to /_fanout/<operation>, with
arguments as JSON, and `AdminApplication` answers in the process.
"""

from __future__ import annotations

import binascii
import http.client
import inspect
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError, OptionError, SetupError, StreamStateError
from fanout.testing.faults import fault_to_json
from fanout.testing.kinesis.credentials import ClientSettings
from fanout.testing.kinesis.rules import KinesisRules, KinesisStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fanout.testing.faults import Fault

_ADMIN_PATH = "/_fanout/"

# Longest wait for the process to leave by itself, in seconds; it takes a tenth of one.
_GRACE = 5.0


class KinesisProcess(ClientSettings):
    """Run `KinesisServer` in a child process while the `with` block lasts.

    It has the methods of `KinesisServer`; each is a blocking HTTP request. The child ends when
    this process does, however that happens.

    Args:
        rules: the service's figures; `KinesisRules.fast()` suits tests.
        port: the port on 127.0.0.1; 0 takes a free one.
        tls: speak TLS too, with a new certificate; the settings of clients then lead there.
    """

    def __init__(
        self, rules: KinesisRules | None = None, *, port: int = 0, tls: bool = False
    ) -> None:
        self.rules = rules or KinesisRules()
        self._port = port
        self._tls = tls
        self._certificate: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._endpoint_url: str | None = None

    def __enter__(self) -> Self:
        """Start the child and wait until it serves.

        Raises:
            SetupError: the child ended at once; it says why on stderr.
        """
        command = [sys.executable, "-m", "fanout.testing.kinesis.server"]
        command += ["--port", str(self._port), "--rules", json.dumps(asdict(self.rules))]
        command += ["--tls"] if self._tls else []
        process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.close()
            raise SetupError("the Kinesis process ended before it could serve; see its stderr")
        where = json.loads(line)
        self._endpoint_url = where["endpoint_url"]
        self._certificate = Path(where["certificate"]) if self._tls else None
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child and wait for it; idempotent."""
        process, self._process = self._process, None
        self._endpoint_url = self._certificate = None
        if process is None:
            return
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()

    @property
    def endpoint_url(self) -> str:
        """The URL for a client's `endpoint_url`.

        Raises:
            StreamStateError: the server is not running.
        """
        if self._endpoint_url is None:
            raise StreamStateError("the KinesisProcess is not running: use it in a with statement")
        return self._endpoint_url

    @property
    def certificate(self) -> Path | None:
        """The file of the certificate that clients have to trust; None without TLS."""
        return self._certificate

    @property
    def pid(self) -> int:
        """The child's process id.

        Raises:
            StreamStateError: the server is not running.
        """
        if self._process is None:
            raise StreamStateError("the KinesisProcess is not running: use it in a with statement")
        return self._process.pid

    def create_stream(self, stream: str, shards: int = 1) -> str:
        """Create a stream that is ACTIVE at once, and return its ARN."""
        return str(self._call("create_stream", stream=stream, shards=shards))

    def put_records(
        self,
        stream: str,
        records: Iterable[tuple[str | None, bytes]],
        *,
        shard: str | None = None,
    ) -> list[tuple[str, str]]:
        """Store records, as `KinesisServer.put_records` does.

        Args:
            stream: the stream's name.
            records: partition keys and data; a key of None is left out.
            shard: the open shard that takes all of them; None leaves it to the keys.
        """
        encoded = [
            (key, binascii.b2a_base64(data, newline=False).decode()) for key, data in records
        ]
        placed = self._call("put_records", stream=stream, records=encoded, shard=shard)
        return [(shard_id, number) for shard_id, number in placed]

    def split_shard(self, stream: str, shard: str) -> tuple[str, ...]:
        """Split a shard in the middle of its range, and return the ids of its children."""
        return tuple(self._call("split_shard", stream=stream, shard=shard))

    def merge_shards(self, stream: str, shard: str, adjacent: str) -> str:
        """Merge two neighbouring shards, and return the id of their child."""
        return str(self._call("merge_shards", stream=stream, shard=shard, adjacent=adjacent))

    def expire(self, stream: str) -> None:
        """Let the retention period of all that is stored pass; see `KinesisServer.expire`."""
        self._call("expire", stream=stream)

    def inject(self, fault: Fault) -> None:
        """Plan a fault; it is used up after it struck as often as it says."""
        self._call("faults", **fault_to_json(fault))

    def statistics(self) -> KinesisStatistics:
        """Return what clients did so far."""
        return KinesisStatistics(**self._call("statistics"))

    def _call(self, operation: str, **arguments: Any) -> Any:
        connection = http.client.HTTPConnection(self.endpoint_url.partition("//")[2])
        try:
            connection.request("POST", _ADMIN_PATH + operation, json.dumps(arguments))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "error" in answer:
            raise OptionError(answer["error"])
        return answer["result"]


class AdminApplication:
    """Answer the private path by functions of JSON values, and hand every other request on."""

    def __init__(self, app: Any, operations: Mapping[str, Callable[..., Any]]) -> None:
        self._app = app
        self._operations = operations

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Run the operation that the path names."""
        path = environ["PATH_INFO"]
        if not path.startswith(_ADMIN_PATH):
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, document = self._call(path.removeprefix(_ADMIN_PATH), body)
        encoded = json.dumps(document).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(encoded)))]
        start_response(status, headers)
        return [encoded]

    def _call(self, name: str, body: bytes) -> tuple[str, dict[str, Any]]:
        operation = self._operations.get(name)
        if operation is None:
            return "404 Not Found", {"error": f"there is no operation {name!r}"}
        try:
            return "200 OK", {"result": operation(**_arguments(operation, body))}
        except FanOutError as error:
            return "400 Bad Request", {"error": str(error)}


def _arguments(operation: Callable[..., Any], body: bytes) -> dict[str, Any]:
    """Read the arguments of an operation, a JSON object with its names."""
    try:
        arguments = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        inspect.signature(operation).bind(**arguments)
    except (*MALFORMED_JSON, TypeError) as error:
        raise OptionError(f"these are no arguments of the operation: {error}") from error
    return arguments
