"""Compare the output of the queries with the records sent.

`python -m fanout.demo.verification DIRECTORY [S3]` does so in a process that shares nothing with
the run but its files: no Spark, no service.
"""

from __future__ import annotations

import math
import sys
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias, final

import msgspec

from fanout._child_process import run_command
from fanout.demo.options import STREAM, DemoFailedError, ServiceName
from fanout.demo.workspace import Workspace
from fanout.testing.trials.oracle import OutputOracle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanout.demo.workspace import ReadRecord

Reported: TypeAlias = "tuple[int, int | None]"
"""A batch, and the watermark behind it in milliseconds since the Unix epoch; None for none."""


@final
class SentRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where the service has stored a record."""

    split: str
    sequence: str
    time: int | None = None  # of its event, in milliseconds since the Unix epoch


@final
class Evidence(msgspec.Struct):
    """What is known of a run beside its output, as far as it has come."""

    source: ServiceName
    sent: list[SentRecord]  # by number
    parents: dict[str, tuple[str, ...]]  # of each split that a reshard has created
    # Splits that were created between a kill of the query that reads the stream and its restart.
    born: frozenset[str] | None = None
    killed_in: int = -1  # its batch; of another query than that of the output: -1
    # The watermarks in the order in which they were reported; None without a shuffle.
    reported: list[Reported] | None = None


@final
class Proof(msgspec.Struct, frozen=True):
    """The result of the comparison."""

    records_sent: int
    records_read: int
    batches: int
    lost: int
    duplicated: int  # without the first time
    altered: int  # records that were not sent: of another key, value, place or event time
    # Records in a later batch than one that follows them in their split or, behind a shuffle, of
    # their key, or than one of a child split; None where a service promises no order.
    out_of_order: int | None
    # Records of splits that were created between a kill and the restart, in batches after the one
    # that was killed; None without a kill.
    second_generation: int | None
    # Records with an event time that a watermark had excluded which was reported before, and
    # watermarks below one that was reported before; None without a shuffle.
    watermark_violations: int | None = None
    # Records with an event time that the last watermark had excluded; None without a shuffle.
    watermark_passed: int | None = None
    # Records that the queue had delivered before, without an acknowledgement; None elsewhere.
    redelivered: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every record came through once, as it was, and in order where there is one.

        After a kill, some must have come from splits that were new after the restart, and
        behind a shuffle a watermark must have passed some: otherwise the run shows nothing about
        them.
        """
        broken = self.lost or self.duplicated or self.altered or self.out_of_order
        shown = 0 not in (self.second_generation, self.watermark_passed)
        return shown and not broken and not self.watermark_violations


def verify(evidence: Evidence, read: Sequence[ReadRecord]) -> Proof:
    """Compare the output, in any order, with the records sent.

    Order is checked between batches: Spark does not order rows within one, and there both the split
    and the sequence number are columns to sort by.
    """
    oracle = OutputOracle(STREAM, ordered=False)
    order = _Order(evidence)
    altered = misplaced = second_generation = redelivered = 0
    for record in sorted(read, key=lambda record: (record.batch, int(record.sequence))):
        number = oracle.read(record.key, record.value)
        if number is not None and number < len(evidence.sent):
            sent = evidence.sent[number]
            altered += _is_altered(record, sent, shuffled=evidence.reported is not None)
            misplaced += order.is_broken_by(record, number, sent)
            redelivered += record.deliveries > 1
            born_anew = sent.split in (evidence.born or ())
            second_generation += born_anew and record.batch > evidence.killed_in
    verdict = oracle.verdict(len(evidence.sent))
    violations, passed = None, None
    if evidence.reported is not None:
        violations, passed = _watermarks(read, evidence.reported)
    return Proof(
        records_sent=verdict.produced,
        records_read=verdict.read,
        batches=len({record.batch for record in read}),
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        altered=verdict.altered + altered,
        out_of_order=None if evidence.source.lender else misplaced,
        second_generation=None if evidence.born is None else second_generation,
        watermark_violations=violations,
        watermark_passed=passed,
        redelivered=redelivered if evidence.source is ServiceName.KINESIS_QUEUE else None,
    )


def _is_altered(record: ReadRecord, sent: SentRecord, *, shuffled: bool) -> bool:
    """Return whether a record has another place than it was sent to, or another event time."""
    if shuffled:
        return record.time != sent.time
    return (record.split, record.sequence) != (sent.split, sent.sequence)


@final
class _Order:
    """The order of the records of each split, and of each key, as batches follow each other.

    A key that moved to another split, because there are more of them, has no order between the two
    behind a shuffle, which has each key in one partition.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._shuffled = evidence.reported is not None
        self._parents = evidence.parents
        self._newest: dict[object, int] = {}
        self._partitions: dict[bytes, str] = {}
        self._closed: dict[str, int] = {}  # from the first batch of a descendant on

    def is_broken_by(self, record: ReadRecord, number: int, sent: SentRecord) -> bool:
        """Return whether a record comes behind a later one of its split or key, or of a child."""
        if record.split not in self._newest:
            self._close_ancestors(record.split, record.batch)
        broken = record.batch > self._closed.get(record.split, math.inf)
        if self._shuffled:
            broken |= record.split != self._partitions.setdefault(record.key, record.split)
        places = {record.split: int(record.sequence), (record.key, sent.split): number}
        for lane, place in places.items():
            newest = self._newest.get(lane, 0)
            broken |= place < newest
            self._newest[lane] = max(place, newest)
        return broken

    def _close_ancestors(self, split: str, batch: int) -> None:
        for parent in self._parents.get(split, ()):
            self._closed.setdefault(parent, batch)
            self._close_ancestors(parent, batch)


def _watermarks(read: Iterable[ReadRecord], reported: Sequence[Reported]) -> tuple[int, int]:
    """Count violations of watermarks, and the records that the last watermark excludes.

    A violation is a record that came after a watermark that had excluded it, or a watermark below
    one that was reported before.
    """
    heights = [(batch, -math.inf if mark is None else mark) for batch, mark in reported]
    highest = accumulate((height for _, height in heights), max)
    backwards = sum(
        height < before for before, (_, height) in zip(highest, heights[1:], strict=False)
    )
    late = passed = 0
    last = heights[-1][1] if heights else -math.inf
    by_batch = dict(heights)
    for batch, times in _times(read).items():
        excluded = max((by_batch[other] for other in by_batch if other < batch), default=-math.inf)
        late += sum(time <= excluded for time in times)
        passed += sum(time <= last for time in times)
    return late + backwards, passed


def _times(read: Iterable[ReadRecord]) -> dict[int, list[int]]:
    """Return the event times of each batch."""
    times: dict[int, list[int]] = {}
    for record in read:
        if record.time is not None:
            times.setdefault(record.batch, []).append(record.time)
    return times


def verify_in_process(workspace: Workspace) -> Proof:
    """Compare a run's output with the records sent, in a new process."""
    command = [sys.executable, "-m", "fanout.demo.verification", workspace.root]
    if workspace.s3 is not None:
        command.append(workspace.s3)
    done = run_command(command)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise DemoFailedError(f"the output cannot be compared with the records sent: {lines[-1]}")
    return msgspec.json.decode(done.stdout, type=Proof)


def main(root: str, s3: str | None = None) -> None:
    """Print the proof of a run as JSON: of its directory, and its endpoint of S3 if it has one."""
    workspace = Workspace(root, s3)
    evidence = msgspec.json.decode(workspace.evidence.read_bytes(), type=Evidence)
    proof = verify(evidence, list(workspace.read_output()))
    sys.stdout.buffer.write(msgspec.json.encode(proof))


if __name__ == "__main__":
    main(*sys.argv[1:])
