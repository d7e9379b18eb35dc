"""An embedded Kinesis with enhanced fan-out, for tests, demos and benchmarks without an account.

It is moto's Kinesis behind a threaded HTTP server on 127.0.0.1, with SubscribeToShard added and
resharding corrected, and moto's DynamoDB for leases on the same port. Run it in this process
(`KinesisServer`) or in one of its own (`fanout.testing.kinesis.process.KinesisProcess`, or
`python -m fanout.testing.kinesis.server`).
"""

from __future__ import annotations

import argparse
import binascii
import functools
import json
import os
import select
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import moto.core
import moto.dynamodb.models
import moto.kinesis.models

from fanout.errors import OptionError, StreamStateError
from fanout.testing.faults import Fault, fault_from_json
from fanout.testing.http_server import HttpServer
from fanout.testing.kinesis.cbor import CborApplication
from fanout.testing.kinesis.credentials import REGION, ClientSettings
from fanout.testing.kinesis.moto_backend import MOTO, Backend, refused_as_mistakes
from fanout.testing.kinesis.moto_stream import PutEntry
from fanout.testing.kinesis.process import AdminApplication
from fanout.testing.kinesis.rules import KinesisRules, KinesisStatistics
from fanout.testing.kinesis.server_state import ServerState
from fanout.testing.one_at_a_time import OneAtATime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from fanout.testing.certificate import LocalCertificate
    from fanout.testing.kinesis.moto_stream import EmbeddedStream
    from fanout.testing.kinesis.shard import Shard

# moto's types stay outside: they describe the backend that ours replaces.
_moto: Any = moto
_backends: Any = _moto.kinesis.models.kinesis_backends
# The Kinesis Client Library keeps its leases in it.
_dynamodb: Any = _moto.dynamodb.models.dynamodb_backends

# moto's backends are global to the process.
_only_one = threading.Lock()


class KinesisServer(ClientSettings):
    """Run Kinesis in this process while the `with` block lasts.

    One server per process runs at a time, because moto keeps its state per process; that state is
    dropped when a server starts and when it closes. The methods below act directly, without HTTP,
    and are safe for threads; everything that the API offers works through a client as well.
    Clients of DynamoDB find an empty one at the same URL.

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
        self._certificate: LocalCertificate | None = None
        self._state = ServerState(self.rules)
        self._http: HttpServer | None = None

    def __enter__(self) -> Self:
        """Start serving.

        Raises:
            StreamStateError: another server runs in this process.
            OSError: the port is taken.
        """
        if not _only_one.acquire(blocking=False):
            raise StreamStateError(
                "a KinesisServer already runs in this process, and moto keeps its state per "
                "process: close that one first, or start this one as a KinesisProcess"
            )
        self._state.closing = False
        _backends.clear()
        _dynamodb.clear()
        _backends.backend = functools.partial(Backend, state=self._state)
        try:
            # moto reads files for the first backend: better here than on a caller's event loop.
            _ = _backends[_moto.core.DEFAULT_ACCOUNT_ID][REGION]
            # Of two workers one gets a lease.
            services = OneAtATime(MOTO, _is_for_dynamodb)
            application = AdminApplication(CborApplication(services), self._operations())
            tls = self._certify().server_tls if self._tls else None
            self._http = HttpServer(self._port, application, name="kinesis-server", tls=tls)
        except BaseException:
            self._forget()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut every connection, wait for every thread and drop all streams; idempotent."""
        if self._http is None:
            return
        self._state.closing = True
        for backend in self._backends():
            backend.end_subscriptions()
        self._http.close()
        self._http = None
        self._forget()

    @property
    def endpoint_url(self) -> str:
        """The URL for a client's `endpoint_url`.

        Raises:
            StreamStateError: the server is not running.
        """
        if self._http is None:
            raise StreamStateError("the KinesisServer is not running: use it in a with statement")
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._http.port}"

    @property
    def certificate(self) -> Path | None:
        """The file of the certificate that clients have to trust; None without TLS."""
        return self._certificate.path if self._certificate else None

    def create_stream(self, stream: str, shards: int = 1) -> str:
        """Create a stream that is ACTIVE at once.

        Args:
            stream: its name.
            shards: how many shards share the hash keys evenly.

        Returns:
            The stream's ARN.

        Raises:
            OptionError: there is a stream of that name.
        """
        with refused_as_mistakes():
            return str(self._backend().create_stream(stream, shards).arn)

    def put_records(
        self,
        stream: str,
        records: Iterable[tuple[str | None, bytes]],
        *,
        shard: str | None = None,
    ) -> list[tuple[str, str]]:
        """Store records; there is no limit to a call.

        Args:
            stream: the stream's name.
            records: partition keys and data; a key of None is left out, as the service leaves it
                out where it distributes the records itself and the producer gave none.
            shard: the open shard that takes all of them; None leaves it to the keys.

        Returns:
            Per record its shard id and sequence number.

        Raises:
            OptionError: there is no such stream, or no such open shard.
        """
        found = self._stream(stream)
        hash_key = None if shard is None else self._shard(found, shard).starting_hash
        entries = [
            PutEntry(
                partition_key=key,
                hash_key=hash_key,
                data=binascii.b2a_base64(data, newline=False),
                size=len(data) + len((key or "").encode()),
            )
            for key, data in records
        ]
        return [(shard_id, str(number)) for shard_id, number in found.append(entries)]

    def split_shard(self, stream: str, shard: str) -> tuple[str, ...]:
        """Split a shard in the middle of its range.

        Returns:
            The ids of its two children.

        Raises:
            OptionError: there is no such stream, or no such open shard.
        """
        found = self._stream(stream)
        parent = self._shard(found, shard)
        middle = (parent.starting_hash + parent.ending_hash + 1) // 2
        found.split_shard(shard, str(middle))
        return tuple(child.shard_id for child in parent.children)

    def merge_shards(self, stream: str, shard: str, adjacent: str) -> str:
        """Merge two neighbouring shards.

        Returns:
            The id of their child.

        Raises:
            OptionError: there is no such stream, or the shards are not open or no neighbours.
        """
        found = self._stream(stream)
        parent = self._shard(found, shard)
        self._shard(found, adjacent)
        with refused_as_mistakes():
            found.merge_shards(shard, adjacent)
        return parent.children[0].shard_id

    def expire(self, stream: str) -> None:
        """Let the retention period of all that is stored pass: records, and shards that are closed.

        Args:
            stream: the stream's name.

        Raises:
            OptionError: there is no such stream.
        """
        self._stream(stream).expire()

    def inject(self, fault: Fault) -> None:
        """Plan a fault; it is used up after it struck as often as it says."""
        self._state.faults.add(fault)

    def statistics(self) -> KinesisStatistics:
        """Return what clients did so far."""
        return KinesisStatistics(
            **self._state.counts(),
            faults=self._state.faults.struck(),
            open_subscriptions=sum(
                consumer.live_count()
                for backend in self._backends()
                for stream in tuple(backend.streams.values())
                for consumer in stream.consumers
            ),
        )

    def _certify(self) -> LocalCertificate:
        # Few servers need it.
        from fanout.testing.certificate import LocalCertificate  # noqa: PLC0415

        self._certificate = LocalCertificate()
        return self._certificate

    def _operations(self) -> dict[str, Any]:
        return {
            "create_stream": self.create_stream,
            "put_records": lambda stream, records, shard: self.put_records(
                stream, ((key, binascii.a2b_base64(data)) for key, data in records), shard=shard
            ),
            "split_shard": self.split_shard,
            "merge_shards": self.merge_shards,
            "expire": self.expire,
            "faults": lambda **document: self.inject(fault_from_json(document)),
            "statistics": lambda: asdict(self.statistics()),
        }

    def _backend(self) -> Backend:
        _ = self.endpoint_url
        backend: Backend = _backends[_moto.core.DEFAULT_ACCOUNT_ID][REGION]
        return backend

    def _backends(self) -> Iterator[Backend]:
        for _, _, backend in tuple(_backends.iter_backends()):
            yield backend

    def _stream(self, name: str) -> EmbeddedStream:
        streams = self._backend().streams
        if name not in streams:
            raise OptionError(f"there is no stream {name!r}; create it first")
        return streams[name]

    def _shard(self, stream: EmbeddedStream, shard_id: str) -> Shard:
        found = stream.shards.get(shard_id)
        if found is None or not found.is_open:
            raise OptionError(f"stream {stream.stream_name!r} has no open shard {shard_id!r}")
        return found

    def _forget(self) -> None:
        if self._certificate is not None:
            self._certificate.remove()
            self._certificate = None
        _backends.clear()
        _dynamodb.clear()
        _backends.backend = _moto.kinesis.models.KinesisBackend
        _only_one.release()


def _is_for_dynamodb(environ: dict[str, Any]) -> bool:
    return str(environ.get("HTTP_X_AMZ_TARGET", "")).startswith("DynamoDB_")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until stdin closes or SIGTERM comes; print as a line of JSON where."""
    parser = argparse.ArgumentParser(prog="python -m fanout.testing.kinesis.server")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0: a free one")
    parser.add_argument(
        "--rules", type=_parse_rules, default=KinesisRules(), help="fields of KinesisRules as JSON"
    )
    parser.add_argument("--tls", action="store_true", help="speak TLS too")
    options = parser.parse_args(arguments)
    with (
        _noted_signals(signal.SIGTERM, signal.SIGINT) as signals,
        KinesisServer(options.rules, port=options.port, tls=options.tls) as server,
    ):
        where = {"endpoint_url": server.endpoint_url}
        where |= {"certificate": str(server.certificate)} if server.certificate else {}
        sys.stdout.write(json.dumps(where) + "\n")
        sys.stdout.flush()
        _wait_for_end(sys.stdin.fileno(), signals)


@contextmanager
def _noted_signals(*numbers: signal.Signals) -> Iterator[int]:
    """Yield a descriptor that becomes readable when one of these signals comes.

    A handler in Python would not do: it does not run before a call of the operating system ends
    that begins just after the signal.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = [(number, signal.signal(number, lambda *_: None)) for number in numbers]
    wakeup = signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before:
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _wait_for_end(stdin: int, signals: int) -> None:
    """Wait until stdin closes or a signal has come, also before this call."""
    while True:
        ready, _, _ = select.select([stdin, signals], [], [])
        if signals in ready or not os.read(stdin, 4096):
            return


def _parse_rules(text: str) -> KinesisRules:
    try:
        return KinesisRules(**json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
