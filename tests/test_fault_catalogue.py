"""Faults of the services, and a check that a test shows that the library survives each.

Each line is a failure, or a moment in which other connectors have failed, and what the library
makes of it, in the words of an operator. Where a failure belongs to the way in which another
connector is built, the line states the danger here. A test names what it shows by the beginning
of the line: `@pytest.mark.fault("A subscribe call is never answered")`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[1]

SUBSCRIBING: Final = (
    "A subscribe call is never answered: it is given up after its time, and made again.",
    "An answer comes after its call was given up: it delivers nothing, and its socket is closed.",
    "The service does not find what is subscribed to, and it is found out what has gone.",
    "The service throttles, or fails with a 5xx, of which the body may be an HTML page.",
    "Another client holds a shard when the stream opens: opening does not wait for that shard.",
    "The service throttles, fails or lets a page token expire while a stream is opened.",
    "The environment asks for retries that slow a whole client: they do not reach it.",
    "The very first call is denied: one call, and an error that names the missing action.",
    "A stored position has expired: an error, or a counted gap behind which nothing comes twice.",
    "A position expires later, while its reader is slow.",
    "Another error comes at a stored position: nothing is skipped.",
    "A split is listed again while it is read, or read by two tasks: it has one subscription.",
    "A stream is used after it was closed, or closed twice.",
    "The pool of connections is smaller than the number of shards: no shard waits for another.",
    "The first frame of an answer is an exception, and no initial-response: it has its own name.",
    "No initial-response comes at all.",
    "A thousand subscriptions expire in the same second: they are renewed in turn.",
)

STREAMING: Final = (
    "A producer gave no partition key: it is null, and the record is delivered.",
    "Records come event by event, in one subscription or in many.",
    "Records are aggregated by the Kinesis Producer Library: their sub-records come.",
    "A shard has no records, now or ever: heartbeats keep it alive, and its position moves.",
    "An event without records comes before a single record.",
    "A subscription ends after its five minutes: the next one goes on after its continuation.",
    "A subscription fails after some events, several times in a row.",
    "Ends that are part of life are never counted as failures, however often they come.",
    "Success and failure alternate: each success forgets the failures before it.",
    "More failures in a row than are allowed end the stream, with the last one as the cause.",
    "Each kind of error has a budget of its own.",
    "Several errors come at once: the first one wins, and the others are logged.",
    "An error comes while an event is still waiting: the event is read first.",
    "The reader is cancelled: it ends as cancelled, and not as failed.",
    "Code of the user raises: the hook for a new subscription, or Spark's handler.",
    "The service sends five events where two were asked for: the others wait, in order.",
    "The service sends far more than was asked for: it waits in the socket.",
    "The consumer takes hours for an event: nothing is dropped, and nothing times out.",
    "An old subscription still has events when its successor runs: they are dropped.",
    "An older batch is acknowledged after a newer one: the position does not move back.",
    "A batch is acknowledged that was never delivered, such as one of another stream: an error.",
    "The caller of a read is gone when its batch is ready: the next read returns it.",
    "Subscriptions succeed and end without an event: the waits between them grow.",
    "Two readers take a shard over from each other: no error in the log, and nothing is lost.",
    "What only a person can mend is an error in the log, each time, with what to do.",
    "One shard fails: the others go on.",
    "The KMS key is throttled, disabled, gone, forbidden or in a wrong state, and mended later.",
    "Credentials expire during a subscription: it goes on, and the next call gets new ones.",
    "User code blocks the event loop for a minute: the service is not taken for silent.",
    "A task is cancelled at any of its steps: nothing is lost, repeated or left open.",
)

BYTES: Final = (
    "The network cuts frames at any byte.",
    "A body ends inside a frame, although its transfer was whole.",
    "A connection is closed or reset anywhere: in the head, a chunk, its size, or a frame.",
    "A checksum is wrong: the frame is asked for again, and dropped only if that was chosen.",
    "A connection is open at one end alone: the silence ends it, heartbeats missing too.",
    "Bytes trickle so slowly that no event is ever whole: that is a silence as well.",
    "What comes is no frame or no event at all: an error that quotes nothing of it.",
    "A record has 10 MiB, more than 13 MB in base64.",
    "An event has 10,000 records.",
    "An event announces more bytes than are allowed: it is refused before memory is taken.",
    "256 shards have large events waiting at once: memory keeps its bound.",
)

POSITIONS: Final = (
    "LATEST stays the moment of its first use, through failures, empty events and restarts.",
    "Records at a time come to nothing, such as dropped aggregates: the position still holds.",
    "A restart in the middle of an aggregated record neither repeats nor skips a sub-record.",
    "A start lies in the future: waited for where a clock explains it, else an error.",
    "Positions move without records, and are stored.",
    "It is known how far a shard is behind, and unknown while it is not read.",
    "The clock of the host is five minutes off, either way.",
    "Clocks are put back or forward for daylight saving, or a leap second is inserted.",
    "The service sends again what was read, at a position instead of after it.",
    "The retention is shortened: lost records are reported, and read ones are not.",
)

SHARD_ENDS: Final = (
    "A shard ends: it is not subscribed to again, and its children are.",
    "The last event has records as well.",
    "A shard ends by one of the two signs alone: it is asked for, and not believed.",
    "A restart exactly at the end of a shard.",
    "Children begin at their horizon, after all their parents.",
    "A merged shard has two parents, one slower than the other.",
    "A restart in the middle of a reshard, and of every reshard of many.",
    "A child is listed before its parent ends, or named by its end before it is listed.",
    "A shard has expired with records that were not read: an error, or a counted gap.",
    "The shard has expired, its consumer was deregistered, or the stream deleted: three errors.",
)

CONSUMERS: Final = (
    "A consumer is of another account's stream of that name: nothing is read.",
    "The stream does not exist.",
    "The consumer does not exist: it is registered; one that was given by its ARN is an error.",
    "The consumer exists.",
    "The consumer is being created, here or by another client: the stream waits.",
    "The consumer is never ready: an error after a minute.",
    "The consumer is being deleted: waited for and registered again, or an error for an ARN.",
    "Two processes register the same name at once.",
    "Describing and registering are throttled, or the quota of consumers is reached.",
    "A permission is missing: the error names the action to grant.",
    "The service describes a consumer without its ARN, or not at all.",
    "Deregistering hangs or is refused: the stream closes all the same, and says what stays.",
)

WRITING: Final = (
    "Some records of a call fail, or a shard throttles: these are put again, each key in order.",
    "The answer to a put is lost or never comes: it is put again, and ids find the repeats.",
    "Shards are split and merged while records are put: each key keeps its order.",
    "Many writers fill one shard for longer than the timeout: all of them get through.",
    "Records are never taken: an error in time.",
    "A put is denied, or its credentials expire: an error that names the grant, or new ones.",
    "A task is cancelled while it writes: the writer goes on.",
    "A job that writes to Kinesis is killed: nothing is lost, and ids find the repeats.",
)

TABLES: Final = (
    "A job that writes to a table is killed at each step of a batch: the batch is there once.",
    "Workers of each sink are killed, and the driver between two sinks: each row is there once.",
    "Two queries share a session: each commits under its own id.",
    "Another session has written a batch: a table in a cache does not hide it.",
    "A value looks like a number in the name of a directory: it is read as it was written.",
    "A batch comes again that the table has: it is not written.",
    "Other writers commit to the table in between: the batch is found behind their commits.",
    "A killed attempt leaves files or tables behind: readers never see them.",
    "The server crashes between the tasks and the transaction: the lost rows are missed.",
    "The connection to a database is lost before the commit: nothing of the batch is left.",
    "A task of Spark has filled a staging table twice: the counts differ.",
    "A server or the lock of a dead run answers nothing: the wait ends in time.",
    "Two runs write one batch at once: the database takes it from one of them.",
    "A run that lost its checkpoint to another one writes nothing more.",
    "A grant, a column or a library is missing, or the server is away: an error that says so.",
    "The database refuses a value: the error names no value.",
)

KAFKA_BROKERS: Final = (
    "A broker is killed in the middle of a fetch, and comes back: nothing is lost or repeated.",
    "A broker hangs with its connections open: it is waited for.",
    "A leader is elected anew, here or on another broker: it is found, and read on.",
    "A partition has no leader for a while: the cluster is not asked without a pause.",
    "A leader sends us to a replica that is near, and that one fails or lags behind.",
    "A request fails, or one partition of it: each reader that asked goes on where it stood.",
    "A broker throttles for a quota: it is asked again when it says, and other brokers go on.",
    "An answer breaks off, or breaks Kafka's protocol: an error that says so, and closes.",
    "No broker answers when the stream opens: one clear sentence.",
    "Access is refused, at first or later: the error says what to grant.",
    "Errors and the log show everything but passwords and records.",
    "A broker answers with an error that the policy does not know.",
    "A token of OAuth expires, or cannot be had for a while.",
    "A Spark driver is killed, by SIGKILL, at any moment of a batch: exactly the same rows.",
    "A stream is cancelled or closed anywhere: nothing is left behind.",
)

KAFKA_TOPICS: Final = (
    "Partitions are added while a topic is read: they are read from their beginning.",
    "A pattern gains a topic, or matches none yet.",
    "A topic is deleted: an error, or the others go on.",
    "A topic is deleted and created again, and ends before the position.",
    "A topic is deleted and created again between two runs, however many records it has then.",
    "A broker that has just started does not know a topic or an offset yet: no false alarm.",
    "Records expire before they are read, also those of the very first position.",
    "A topic is added to a stream with stored positions, or left out of it.",
    "Stored positions meet another cluster: they are refused.",
    "The brokers' addresses lead to another cluster while it is read: an error for good.",
    "A topic or a partition that is named does not exist.",
    "A topic is empty, or some of its partitions are: nothing waits for them.",
)

KAFKA_RECORDS: Final = (
    "A record of a share group waits beyond its lock each time: its last delivery is handed out.",
    "Open, aborted and committed transactions lie in one partition.",
    "Compaction leaves holes, and batches without records.",
    "A batch begins before the offset that is wanted, or is cut short.",
    "Keys and values are null or empty, headers repeat or have no value.",
    "The key of a header is no text: its record comes all the same.",
    "Records come in every codec, from librdkafka, from Kafka's own producer and from others.",
    "A value has 10 MiB, more than is asked for at once.",
    "A little batch would decompress to more than is allowed: refused before memory is taken.",
    "A batch is damaged: what comes before it is delivered once, then an error names the place.",
    "The broker sets the timestamps, or there are none.",
    "The consumer is slow: who does not ask is not fetched, and memory is reserved before.",
    "Busy partitions fill every answer: none beside them starves.",
    "The user's decode fails: the error names the partition and its offsets, and no data.",
    "Partitions are of different ages: each has its own watermark, and idle ones are left out.",
)

KAFKA_OFFSETS: Final = (
    "A read begins at every place that has a name, and at those of a mapping or a function.",
    "A time is younger than every record: the end as it was before it was looked up.",
    "A group has committed nothing: an error, or the reset that was chosen.",
    "A first attempt fails after its start was found: the start stays where it was.",
    "A read ends at every place that has a name, and a later one goes on there.",
    "A stop lies behind an aborted transaction, its marker or an open one: the read ends.",
    "A read begins at its stop, or beyond it: nothing is read, and it ends.",
    "A stop lies beyond the end: it is waited for, unless it can never come.",
    "What is available now grows while it is read: it ends where it ended.",
    "An offset is asked for that the partition does not have: that is a loss.",
    "Another client looks at the group: it sees what was acknowledged, and no more.",
    "A commit fails, hangs or is refused, or its coordinator has moved: the stream goes on.",
    "The group's commits differ from the stored positions: they are never read.",
)

KAFKA_TRANSACTIONS: Final = (
    "The writer of a transaction is gone before its commit: any process finishes it, once.",
    "A dead run has left a transaction open: readers get on when the next one begins.",
    "A commit comes late, after a newer run: it changes nothing, and its error says so.",
    "A transaction takes longer than its timeout: the error names it, and nothing of it is seen.",
    "A zombie writes with the same epoch after the end: what it opens is never committed.",
    "A commit is still reaching the partitions when its marker is looked for: it is waited for.",
    "A broker is killed or hangs between the marker and the commit, or in the middle of it.",
    "A coordinator is being elected, or has just started: it is asked again.",
    "Writing in a transaction is not permitted: the error names what to grant.",
    "A topic that was written to is deleted before or after the commit.",
    "The brokers are too old to describe transactions, or to show an open marker.",
    "A dead job cannot be started for now: a person sees what it left open, and finishes it.",
    "A caller is cancelled: the call leaves nothing, and can be made again.",
)

KAFKA_WRITING: Final = (
    "A writer is killed in a transaction: nothing of it is seen, and the next one ends it.",
    "An older writer goes on after a newer one: every call of it is an error.",
    "A broker is killed while records are written, and comes back: each is there once, in order.",
    "A broker does not know a topic yet, or knows more partitions: no key of a writer moves.",
    "A partition has no leader while others are written: memory stays bounded.",
    "A topic that earlier batches of a sink named is deleted: other batches are written.",
    "A job that reads, processes and writes is killed at any moment: each record counts once.",
    "A task is cancelled while it writes or commits: each record counts once, or none of them.",
    "A transaction is open for too long: the broker ends it, and its writer says so.",
    "A permission is missing: the error names it.",
)

KAFKA_ANSWERS: Final = (
    "Every request: an error code that Kafka calls retriable, known to aiokafka or not.",
    "Every request: a throttle, after which the broker reads no request of the connection.",
    "Fetch: no topics (throttled), no records, no lists of transactions, no last stable offset.",
    "Fetch: a nearer replica, an error of one partition, or of the whole answer.",
    "ListOffsets: no offset for a time, a leader that does not know yet, a missing partition.",
    "Metadata: no brokers, no name of the cluster, partitions without a leader, unknown topics.",
    "FindCoordinator: none yet, or another one than before.",
    "OffsetFetch: no offset, a group that loads, a missing partition, an open transaction.",
    "OffsetCommit: an error of some partitions, a group with members, a missing partition.",
    "InitProducerId: a transaction that is still being ended, no block of ids yet.",
    "AddPartitionsToTxn, TxnOffsetCommit: a partition that is left out is not part of it.",
    "EndTxn: the same end again, another end, an older producer, a lost answer.",
    "Produce: a repeated batch, an unusual record, no row for a partition, replicas that lag.",
    "DescribeConfigs: a setting that is not reported, or has no value.",
    "DescribeTransactions: an unknown id, a broker that has no such request.",
    "ApiVersions and SASL: another service, another mechanism, a refused token or password.",
    "ShareAcknowledge: no answer; the records that came meanwhile do not wait for it.",
    "ShareFetch and ShareAcknowledge: errors that the client reports, also those that pass.",
)

SURVIVED: Final = {
    "subscribing": SUBSCRIBING,
    "streaming": STREAMING,
    "bytes": BYTES,
    "positions": POSITIONS,
    "shard ends": SHARD_ENDS,
    "consumers": CONSUMERS,
    "writing": WRITING,
    "tables": TABLES,
    "kafka: brokers": KAFKA_BROKERS,
    "kafka: topics": KAFKA_TOPICS,
    "kafka: records": KAFKA_RECORDS,
    "kafka: offsets": KAFKA_OFFSETS,
    "kafka: transactions": KAFKA_TRANSACTIONS,
    "kafka: writing": KAFKA_WRITING,
    "kafka: answers": KAFKA_ANSWERS,
}

# Each waits for a run on a stream of yours that shows it.
WITHOUT_A_RUN: Final = (
    "What a shard's end looks like, and how a shard is gone, as the tests never reshard.",
    "A KMS key that is changed in the middle of a subscription.",
    "A thousand shards, and the limits of an account for them.",
)

# What the embedded server can only claim, and `make live STREAM=...` shows on a stream of yours.
ONLY_THE_SERVICE: Final = (
    "A subscription ends in peace after five minutes, and goes on in the next.",
    "Another process takes a subscription over after five seconds, and is refused before.",
    "Heartbeats come every five seconds.",
    "The clock of the Date header is the one that stamps records.",
    "A continuation neither skips nor repeats, that of a heartbeat included.",
    "A record of the largest size that the stream takes comes whole.",
    *WITHOUT_A_RUN,
)


EVERY_LINE: Final = (*(line for lines in SURVIVED.values() for line in lines), *ONLY_THE_SERVICE)


def marked_faults() -> dict[str, list[str]]:
    """Return the files whose tests show a fault, by the beginning of its line."""
    marked = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "@pytest.mark.fault(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(ast.Attribute(attr="fault"), [ast.Constant(str(fault))]):
                    marked[fault].append(path.relative_to(ROOT).as_posix())
                case _:
                    pass
    return marked


@pytest.fixture(scope="module")
def marked() -> dict[str, list[str]]:
    return marked_faults()


def test_each_mark_is_the_beginning_of_one_line(marked: dict[str, list[str]]) -> None:
    counts = {fault: sum(line.startswith(fault) for line in EVERY_LINE) for fault in marked}
    assert {fault: count for fault, count in counts.items() if count != 1} == {}


@pytest.mark.parametrize("lines", SURVIVED.values(), ids=SURVIVED)
def test_a_test_shows_each_line(lines: tuple[str, ...], marked: dict[str, list[str]]) -> None:
    assert [line for line in lines if not line.startswith(tuple(marked))] == []


def test_what_only_the_service_shows_is_tested_by_the_live_run(
    marked: dict[str, list[str]],
) -> None:
    shown = {
        line: path
        for line in ONLY_THE_SERVICE
        for fault, paths in marked.items()
        if line.startswith(fault)
        for path in paths
    }
    assert [line for line in ONLY_THE_SERVICE if line not in shown] == list(WITHOUT_A_RUN)
    assert all(path.startswith("tests/conformance/") for path in shown.values())
