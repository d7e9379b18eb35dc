from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.kafka.transactions.outcome import TransactionState
from fanout.kafka.transactions.transactions import Transactions
from fanout.landing.claims import Ownership, PosixLock
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.sinks.kafka.stored_tokens import SinkState
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.transacting import ended, new_sink, transactions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from typer.testing import Result

    from fanout.kafka.transactions.commit_token import CommitToken
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS

LONG_AGO = timedelta(days=7)


class Job:
    """A job that was killed, and `fanout transactions` on its checkpoint."""

    def __init__(self, broker: KafkaBroker, location: Path) -> None:
        self.broker = broker
        self.location = location
        self.storage = LocalStorage(location / "fanout")
        self.storage.create("runs/1", b"{}")
        self.ownership = Ownership(self.storage, 1, b"{}", None)
        self.state = self.state_of("kafka")
        self.sink = asyncio.run(new_sink(broker))

    def state_of(self, sink: str) -> SinkState:
        return SinkState(self.storage, self.ownership, sink)

    def __call__(self, verb: str, *arguments: str) -> Result:
        where = ["--checkpoint", str(self.location)]
        servers = ["--bootstrap-servers", self.broker.bootstrap_servers]
        return CliRunner().invoke(app, ["transactions", verb, *where, *servers, *arguments])

    def json(self, verb: str, *arguments: str, code: int = 0) -> Any:
        result = self(verb, *arguments, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout.splitlines()[-1])

    def stands(self, *, code: int = 0) -> list[str]:
        return [each["stands"] for each in self.json("list", code=code)["transactions"]]

    def do(self, work: Callable[[Transactions], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with transactions(self.broker) as connection:
                return await work(connection)

        return asyncio.run(main())

    def open(self, batch: int = 0, *, recorded: bool = True) -> CommitToken:
        """Write a batch and mark it, like a job that is killed before it commits."""
        token: CommitToken = self.do(lambda connection: self.sink.open(connection, batch))
        if recorded:
            self.state.record(token)
        return token

    def commit(self, token: CommitToken) -> None:
        self.do(lambda connection: connection.commit(token))
        self.settle()

    def settle(self) -> None:
        self.do(lambda connection: ended(connection, self.sink))

    def values(self) -> list[bytes]:
        self.settle()
        return asyncio.run(self.sink.committed())

    def forgotten(self) -> CommitToken:
        """Record a token that is older than what brokers remember."""
        token: CommitToken = self.do(self._begun)
        old = replace(token, created_at=token.created_at - LONG_AGO)
        self.state.record(old)
        return old

    async def _begun(self, connection: Transactions) -> CommitToken:
        return self.sink.token(await connection.begin(self.sink.id, 60.0))


@pytest.fixture
def job(kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "240")
    return Job(kafka_broker, tmp_path)


def test_help_loads_no_kafka_and_no_spark() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from fanout.cli.app import app\n"
        "assert CliRunner().invoke(app, ['transactions', 'abort', '--help']).exit_code == 0\n"
        "print({'aiokafka', 'pyspark', 'pyarrow', 'fanout.kafka'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout == "set()\n"


def test_a_recorded_transaction_that_is_open_is_listed_and_exits_with_1(job: Job) -> None:
    token = job.open(7)
    answer = job.json("list", code=1)
    assert (answer["open"], answer["running"]) == (True, False)
    (found,) = answer["transactions"]
    who = {"producer_id": token.incarnation.producer_id, "epoch": token.incarnation.epoch}
    started = found["brokers"].pop("started_at")
    assert abs(token.created_at.timestamp() - seconds(started)) < 60
    assert found == {
        "sink": "kafka",
        "stands": "can be committed",
        "transactional_id": job.sink.id,
        "topics": [job.sink.topic],
        "recorded": {
            "batch": 7,
            **who,
            "created_at": token.created_at.isoformat(" ", "seconds").partition("+")[0],
            "expires_at": token.expires_at.isoformat(" ", "seconds").partition("+")[0],
        },
        "brokers": {"state": "Ongoing", **who, "timeout": 600.0},
        "marker_group": job.sink.group,
        "marker": None,
        "marker_open": True,
    }


def seconds(text: str) -> float:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_the_table_says_the_same_to_people(job: Job) -> None:
    token = job.open(7)
    result = job("list")
    assert result.exit_code == 1
    for text in ("can be committed", "Ongoing", job.sink.id, "none, one is open", " 7 "):
        assert text in result.stdout
    assert f"id {token.incarnation.producer_id}, epoch {token.incarnation.epoch}" in result.stdout


def test_listing_changes_nothing(job: Job) -> None:
    job.open()
    before = files(job)
    assert job.stands(code=1) == job.stands(code=1) == ["can be committed"]
    assert files(job) == before


def files(job: Job) -> dict[str, bytes]:
    found = (path for path in job.location.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found}


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_what_changes_anything_only_says_so_at_first(job: Job, verb: str) -> None:
    job.open(7)
    before = files(job)
    result = job(verb)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"kafka, batch 7: would be {verb}")
    assert "pass --yes to do it" in result.stdout
    answer = job.json(verb)
    assert (answer["dry_run"], len(answer["done"]), answer["failed"]) == (True, 1, [])
    assert job.stands(code=1) == ["can be committed"]
    assert files(job) == before


def test_commit_lets_readers_see_the_batch_and_tells_the_checkpoint(job: Job) -> None:
    job.open(7)
    answer = job.json("commit", "--yes")
    assert (answer["dry_run"], answer["done"][0]["recorded"]["batch"]) == (False, 7)
    assert job.values() == [b"batch 7"]
    assert job.state.is_committed(7)
    assert job.stands() == ["closed"]
    assert job("commit", "--yes").stdout == f"there is nothing to commit on {job.location}\n"


def test_abort_lets_readers_get_on_and_the_job_write_the_batch_again(job: Job) -> None:
    old = job.open(7)
    assert "aborted (the job writes the batch again" in job("abort", "--yes").stdout
    assert job.values() == []
    assert job.state.unfinished() == []
    assert not job.state.is_committed(7)
    assert job.json("list")["transactions"] == []
    state = job.do(lambda connection: connection.describe(job.sink.id))
    assert state.incarnation != old.incarnation, "every older producer is fenced"


def test_what_is_committed_is_not_committed_again_and_not_aborted(job: Job) -> None:
    job.commit(job.open(7))
    assert job.stands() == ["committed"]
    result = job("abort", "--yes")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "fanout transactions: kafka, batch 7: it is committed, and stays so"
    )
    assert [len(job.json("commit")[part]) for part in ("done", "failed")] == [1, 0]
    assert not job.state.is_committed(7)
    job.json("commit", "--yes")
    assert job.state.is_committed(7)
    assert job.values() == [b"batch 7"]


def test_a_zombie_with_the_epoch_of_what_was_committed_is_not_committed(job: Job) -> None:
    token = job.open(7)
    job.commit(token)
    asyncio.run(job.sink.write(token.incarnation, b"zombie", partition=1))
    assert job.stands() == ["committed"]
    job.json("commit", "--yes")
    assert job.stands(code=1) == ["open, not recorded"]
    job.json("abort", "--yes")
    job.settle()
    assert asyncio.run(job.sink.committed(partition=1)) == []


def test_what_was_aborted_is_not_committed_and_the_job_writes_it_again(job: Job) -> None:
    token = job.open(7)
    job.do(lambda connection: connection.abort(token.transactional_id, token.incarnation))
    job.settle()
    assert job.stands() == ["not committed"]
    answer = job.json("commit", "--yes", code=1)
    assert answer["done"] == []
    assert "the job writes the batch again" in answer["failed"][0]["why"]
    assert job.state.unfinished() == [token], "it is the job's to forget"
    job.json("abort", "--yes")
    assert job.state.unfinished() == []


def test_a_transaction_without_a_token_is_only_aborted(job: Job) -> None:
    first = job.open(6)
    job.commit(first)
    job.state.record_committed(6)
    assert job.stands() == ["closed"]
    job.open(7, recorded=False)
    assert job.stands(code=1) == ["open, not recorded"]
    assert "no token shows that it is complete" in job("commit", "--yes").stderr
    assert job("abort").stdout.startswith("kafka, open transaction: would be aborted")
    assert job.stands(code=1) == ["open, not recorded"]
    job.json("abort", "--yes")
    assert job.stands() == ["closed"]
    assert job.values() == [b"batch 6"]
    assert job.state.is_committed(6)


def test_what_a_newer_incarnation_has_open_hides_neither_marker_nor_loss(job: Job) -> None:
    job.commit(job.open(6))
    job.open(7, recorded=False)
    assert job.stands() == ["committed"], "of batch 6"
    job.state.record_committed(6)
    lost = job.open(8)
    job.open(8, recorded=False)
    assert job.stands() == ["not committed"]
    assert job.json("list")["transactions"][0]["marker"] == 6
    assert job.json("commit", "--yes", code=1)["done"] == []
    assert job.state.unfinished() == [lost]


@pytest.mark.fault("A dead job cannot be started for now")
@pytest.mark.fault("DescribeTransactions")
def test_what_brokers_have_forgotten_is_decided_by_who_has_looked(job: Job) -> None:
    job.forgotten()
    assert job.stands(code=1) == ["nobody knows"]
    for verb in ("commit", "abort"):
        result = job(verb, "--yes")
        assert result.exit_code == 1
        assert f"look whether its records are in {job.sink.topic}" in result.stderr
        assert job.stands(code=1) == ["nobody knows"]
    job.json("commit", "--force")
    assert job.stands(code=1) == ["nobody knows"]
    job.json("commit", "--force", "--yes")
    assert job.state.is_committed(0)
    assert job.stands() == ["closed"]


def test_what_brokers_have_forgotten_is_written_again_where_it_is_not_there(job: Job) -> None:
    job.forgotten()
    job.json("abort", "--force", "--yes")
    assert (job.state.unfinished(), job.state.is_committed(0)) == ([], False)


def test_force_aborts_nothing_that_is_committed(job: Job) -> None:
    token = job.open()
    job.commit(token)
    job.state.forget(0)
    job.state.record(replace(token, created_at=token.created_at - LONG_AGO))
    assert job("abort", "--force", "--yes").exit_code == 1
    assert job.stands() == ["committed"]


@pytest.mark.fault("A dead job cannot be started for now")
def test_a_batch_that_is_committed_while_it_is_being_aborted_stays_so(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = job.open(7)
    begin = Transactions.begin

    async def committed_first(self: Transactions, *arguments: Any) -> Any:
        await self.commit(token)
        return await begin(self, *arguments)

    monkeypatch.setattr(Transactions, "begin", committed_first)
    answer = job.json("abort", "--yes", code=1)
    assert answer["failed"][0]["why"] == "it was committed meanwhile, and stays so"
    assert job.state.is_committed(7)
    assert job.values() == [b"batch 7"]


def test_a_batch_that_is_lost_while_it_is_being_committed_is_told(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = job.open(7)
    commit = Transactions.commit

    async def begun_first(self: Transactions, *arguments: Any) -> Any:
        await self.begin(token.transactional_id, 60.0)
        return await commit(self, *arguments)

    monkeypatch.setattr(Transactions, "commit", begun_first)
    answer = job.json("commit", "--yes", code=1)
    assert answer["failed"][0]["why"].startswith("it was fenced; the job writes the batch again")
    assert job.state.unfinished() == [token]


def test_each_sink_is_told_apart(job: Job, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    job.open(7)
    other = Job(kafka_broker, tmp_path / "other")
    job.state_of("audit").record(other.open(3, recorded=False))
    assert [each["sink"] for each in job.json("list", code=1)["transactions"]] == ["audit", "kafka"]
    job.json("commit", "--yes", "--sink", "audit")
    assert job.stands(code=1) == ["closed", "can be committed"]
    result = job("list", "--sink", "copy")
    assert result.exit_code == 2
    assert "has no sink 'copy': it has audit, kafka" in result.stderr


@pytest.mark.fault("A dead job cannot be started for now")
def test_nothing_is_changed_while_the_job_runs(job: Job) -> None:
    job.open()
    holder = (
        "import sys; from pathlib import Path\n"
        "from fanout.landing.claims import PosixLock\n"
        "lock = PosixLock.try_acquire(Path(sys.argv[1])); print(lock.held, flush=True)\n"
        "sys.stdin.read()"
    )
    lock = str(job.storage.root / "owner.lock")
    running = subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-c", holder, lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == "True\n"
        assert job.json("list", code=1)["running"] is True
        assert "the job is running" in job("list").stdout
        for verb in ("commit", "abort"):
            result = job(verb, "--yes")
            assert (result.exit_code, result.stdout) == (2, "")
            assert "still running; stop it first" in result.stderr
            assert job(verb).exit_code == 0, "a plan needs no ownership"
        running.communicate()
    assert job.stands(code=1) == ["can be committed"]
    job.json("commit", "--yes")


@pytest.mark.long
def test_the_job_is_kept_away_while_something_is_changed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.open()
    commit = Transactions.commit
    look = (
        "import sys; from pathlib import Path\n"
        "from fanout.landing.claims import PosixLock\n"
        "print(PosixLock.try_acquire(Path(sys.argv[1])))"
    )
    seen = []

    async def looked_at(self: Transactions, *arguments: Any) -> Any:
        command = [sys.executable, "-c", look, str(job.storage.root / "owner.lock")]
        done = await asyncio.to_thread(subprocess.check_output, command, text=True)
        seen.append(done)
        return await commit(self, *arguments)

    monkeypatch.setattr(Transactions, "commit", looked_at)
    job.json("commit", "--yes")
    assert seen == ["None\n"]
    lock = PosixLock.try_acquire(job.storage.root / "owner.lock")
    assert lock is not None
    lock.release()


def test_a_job_without_a_token_has_nothing(job: Job) -> None:
    assert job("list").stdout == f"no sink has stored a token in {job.location}\n"
    answer = {"checkpoint": str(job.location), "running": False, "open": False}
    assert job.json("list") == answer | {"transactions": []}
    assert job.json("abort", "--yes")["done"] == []


def test_a_file_says_how_to_reach_the_brokers(job: Job, tmp_path: Path) -> None:
    job.open()
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={job.broker.bootstrap_servers}\n")
    command = ["transactions", "list", "--checkpoint", f"file://{job.location}"]
    for way in ({}, {"KAFKA_COMMAND_CONFIG": str(config)}):
        named = [] if way else ["--command-config", str(config)]
        result = CliRunner().invoke(app, [*command, *named], env=way)
        assert result.exit_code == 1, result.output
        assert "can be committed" in result.stdout
    env = {"KAFKA_BOOTSTRAP_SERVERS": job.broker.bootstrap_servers}
    assert CliRunner().invoke(app, command, env=env).exit_code == 1


def damage(job: Job) -> None:
    job.storage.create("sinks/kafka/000000000007.json", b"{")


def test_a_damaged_token_is_an_error(job: Job) -> None:
    damage(job)
    result = job("list")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "000000000007.json" in result.stderr
    assert "is damaged" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--checkpoint", "/nowhere", "--bootstrap-servers", "a:1"], "no checkpoint at /nowhere"),
        (
            ["--checkpoint", "s3a://lake/chk", "--bootstrap-servers", "a:1"],
            "commit tokens are read from the local disk alone, not from s3a: copy the directory",
        ),
        (["--checkpoint", "{}"], "pass --bootstrap-servers, or set bootstrap.servers in the file"),
        (["--checkpoint", "{}", "--bootstrap-servers", "kafka://a"], "must be 'host:port'"),
        (["--checkpoint", "{}", "--bootstrap-servers", "kafka.example:9092"], "without TLS"),
        (["--checkpoint", "{}", "--command-config", "/nowhere"], "/nowhere cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize(
    "verb", ["list", *(pytest.param(verb, marks=pytest.mark.long) for verb in ("commit", "abort"))]
)
def test_an_error_is_one_line_on_stderr_and_exits_with_2(
    job: Job, verb: str, arguments: list[str], sentence: str
) -> None:
    job.open()
    named = [argument.replace("{}", str(job.location)) for argument in arguments]
    result = CliRunner().invoke(app, ["transactions", verb, *named])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("fanout transactions: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_brokers_that_do_not_answer_are_an_error(job: Job, unused_tcp_port: int) -> None:
    job.open()
    dead = f"127.0.0.1:{unused_tcp_port}"
    result = job("list", "--bootstrap-server", dead, "--connect-timeout", "0.1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be" in result.stderr


def test_what_one_sink_cannot_do_keeps_no_other_from_it(
    job: Job, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    job.open(7)
    other = Job(kafka_broker, tmp_path / "other")
    lost = other.open(3, recorded=False)
    other.do(lambda connection: connection.begin(lost.transactional_id, 60.0))
    job.state_of("audit").record(lost)
    answer = job.json("commit", "--yes", code=1)
    assert [each["sink"] for each in answer["done"]] == ["kafka"]
    assert [each["sink"] for each in answer["failed"]] == ["audit"]
    assert job.values() == [b"batch 7"]


def test_the_phase_of_what_is_aborted_by_the_command_keeps_nobody_waiting(job: Job) -> None:
    job.open(7)
    job.json("abort", "--yes")
    state = job.do(lambda connection: connection.describe(job.sink.id))
    assert state.state is TransactionState.EMPTY
