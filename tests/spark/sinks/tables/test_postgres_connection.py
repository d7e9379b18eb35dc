"""Connection strings of PostgreSQL: limits where the user names none, and no secret in errors."""

from __future__ import annotations

import traceback
from typing import Final

import pytest
from psycopg.conninfo import conninfo_to_dict

from fanout.errors import OptionError, ServiceError, SetupError
from fanout.spark.sinks.tables.postgres_connection import _unconnected, transaction, with_limits

LIMITS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@pytest.mark.fault("A server or the lock of a dead run answers nothing")
@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://db/shop",
        "postgres://etl@db:1,other:2/shop?sslmode=require",
        "postgresql://etl:why%3F@db/shop",
        "postgresql://etl:why?@db/shop?sslmode=require",
        "postgresql://",
        "postgresql://?host=db",
        "postgresql:///shop?host=/tmp&user=a@b",
        "postgresql://db/shop?connect_timeout=3&keepalives_idle=5&tcp_user_timeout=0",
        "host=db dbname=shop",
        "host=db connect_timeout=3 keepalives_idle=5",
        "host=db password='a connect_timeout=3'",
        "service=shop",
        "host=db client_encoding=LATIN1",
        "postgresql://db/shop?client_encoding=LATIN1",
    ],
)
def test_limits_are_added_where_the_user_names_none(dsn: str) -> None:
    named = conninfo_to_dict(dsn)
    assert conninfo_to_dict(with_limits(dsn)) == LIMITS | named | {"client_encoding": "UTF8"}


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://etl:hunter2%zz@db/shop",
        "postgresql://etl:hunter2/rest@db/shop",
        "postgresql://etl:1/hunter2@127.0.0.1/shop",
        "postgresql://etl:some@hunter2@127.0.0.1/shop",
        "postgresql://[etl:hunter2/shop",
        "host=127.0.0.1 password=some hunter2",
        "host=127.0.0.1 password=some hunter2=rest",
        "host=127.0.0.1 password='hunter2",
        "host=127.0.0.1 sslmode=hunter2",
        "hunter2",
    ],
)
def test_a_malformed_string_is_not_quoted(dsn: str) -> None:
    with (
        pytest.raises(OptionError, match="dsn is malformed") as caught,
        transaction(lambda: dsn),
    ):
        pass
    assert "hunter2" not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize("version", ["1.12.0", "1.11.0", "0.9.1.dev2", "1.5.0"])
def test_a_driver_that_alters_decimals_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("adbc_driver_postgresql.__version__", version)
    with pytest.raises(SetupError, match=f"{version} alters values"), transaction("host=nowhere"):
        pass


def test_a_service_that_is_not_defined_is_told() -> None:
    with pytest.raises(OptionError, match="names a service that no"), transaction("service=nope"):
        pass


def test_variables_of_the_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "hunter2")
    with (
        pytest.raises(OptionError, match="libpq also reads PGPORT of the") as caught,
        transaction("host=127.0.0.1"),
    ):
        pass
    assert "hunter2" not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("postgresql://etl:hunter2@127.0.0.1:1/shop", "port 1 failed: Connection refused"),
        ("host=/nowhere password=hunter2", "connection to server on socket .* failed: No such"),
        ("host=db.invalid password=hunter2", 'could not translate host name "db.invalid"'),
    ],
)
def test_a_server_that_cannot_be_reached_is_named(dsn: str, says: str) -> None:
    with pytest.raises(ServiceError, match=says) as caught, transaction(dsn):
        pass
    assert "hunter2" not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize(
    "query", ["SELECT version();", "\nSELECT\n    attname\nFROM\n    pg_attribute\n"]
)
@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (
            "server closed the connection unexpectedly\n\tThis probably means",
            "server closed the con",
        ),
        (
            "FATAL:  terminating connection due to a limit\nserver closed the",
            "terminating connection",
        ),
    ],
)
def test_a_server_that_ends_a_new_connection_is_not_taken_for_a_malformed_dsn(
    query: str, ended: str, says: str
) -> None:
    raised = _unconnected(OSError(f"IO: [libpq] Failed to execute query '{query}': {ended}"))
    assert isinstance(raised, ServiceError)
    assert str(raised).startswith(f"the connection to PostgreSQL failed: {says}")
