"""Compare the output of the queries with the records sent.

`python -m fanout.demo.verification DIRECTORY [S3]` does so in a process that shares nothing with
the run but its files: no Spark, no service.
"""

from __future__ import annotations

import math
import sys
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

import msgspec

from fanout._child_process import run_command
from fanout.demo.options import DemoFailedError, ServiceName
from fanout.demo.stream import STREAM, SentRecord
from fanout.demo.workspace import Workspace
from fanout.testing.trials.oracle import OutputOracle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanout.demo.workspace import ReadRecord

Reported: TypeAlias = "tuple[int, int | None]"
"""A batch, and the watermark behind it in milliseconds since the Unix epoch; None for none."""


@final
class Evidence(msgspec.Struct, frozen=True):
    """What is known of a run beside its output."""

    source: ServiceName
    sent: list[SentRecord]  # by number
    # Splits that were created between a kill of the query that reads the stream and its restart.
    born: frozenset[str] | None = None
    killed_in: int = -1  # its batch; of another query than that of the output: -1
    # The watermarks in the order in which they were reported; None without a shuffle.
    reported: list[Reported] | None = None


# A record that was read, its number, and where it was sent to.
_Known: TypeAlias = "tuple[ReadRecord, int, SentRecord]"


@final
class Proof(msgspec.Struct, frozen=True):
    """The result of the comparison."""

    records_sent: int
    records_read: int
    batches: int
    lost: int
    duplicated: int  # without the first time
    altered: int  # records that were not sent: of another key, value, place or event time
    # Records in a later batch than one that follows them in their split, or than one of their key
    # that was sent later; None where a service promises no order.
    out_of_order: int | None
    # Records of splits that were created between a kill and the restart, in batches after the one
    # that was killed; None without a kill.
    second_generation: int | None
    # Records with an event time that a watermark had excluded which was reported before, and
    # watermarks below one that was reported before; None without a shuffle.
    watermark_violations: int | None = None
    # Records with an event time that the last watermark had excluded; None without a shuffle.
    watermark_passed: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every record came through once, as it was, and in order where there is one.

        After a kill, some must have come from splits that were new after the restart, and
        behind a shuffle a watermark must have passed some: otherwise the run shows nothing about
        them.
        """
        broken = self.lost or self.duplicated or self.altered or self.out_of_order
        shown = self.second_generation != 0 and self.watermark_passed != 0
        return shown and not broken and not self.watermark_violations


def verify(evidence: Evidence, read: Sequence[ReadRecord]) -> Proof:
    """Compare the output, in any order, with the records sent."""
    oracle = OutputOracle(STREAM, ordered=False)
    known: list[_Known] = []
    for record in read:
        number = oracle.read(record.key, record.value)
        if number is not None and number < len(evidence.sent):
            known.append((record, number, evidence.sent[number]))
    verdict = oracle.verdict(len(evidence.sent))
    ordered = evidence.source is not ServiceName.KAFKA_SHARE
    scattered, violations, passed = 0, None, None
    if shuffled := evidence.reported is not None:
        scattered = _scattered(known)
        violations, passed = _watermarks(read, evidence.reported)
    return Proof(
        records_sent=verdict.produced,
        records_read=verdict.read,
        batches=len({record.batch for record in read}),
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        altered=verdict.altered + sum(_elsewhere(each, shuffled=shuffled) for each in known),
        out_of_order=_misplaced(evidence.source, known) + scattered if ordered else None,
        second_generation=_second_generation(known, evidence),
        watermark_violations=violations,
        watermark_passed=passed,
    )


def _elsewhere(known: _Known, *, shuffled: bool) -> bool:
    """Return whether a record has another place than it was sent to, or another event time."""
    record, _, sent = known
    if shuffled:
        return record.time != sent.time
    return (record.split, record.sequence) != (sent.split, sent.sequence)


def _misplaced(source: ServiceName, known: Iterable[_Known]) -> int:
    """Count the records behind later ones of their split, or of their key.

    Order is checked between batches: Spark does not order rows within one, and there both the split
    and the sequence number are columns to sort by. A key of Kafka that moved to another partition,
    because there are more of them, has no order between the two.
    """
    count = 0
    newest: dict[object, int] = {}
    by_batch = sorted(known, key=lambda each: (each[0].batch, int(each[0].sequence)))
    for record, number, sent in by_batch:
        origin = None if source is ServiceName.KINESIS else sent.split
        places = {record.split: int(record.sequence), (record.key, origin): number}
        count += any(place < newest.get(lane, 0) for lane, place in places.items())
        newest |= {lane: max(place, newest.get(lane, 0)) for lane, place in places.items()}
    return count


def _scattered(known: Iterable[_Known]) -> int:
    """Count the records in another partition of the shuffle than the first of their key."""
    partitions: dict[bytes, str] = {}
    return sum(
        record.split != partitions.setdefault(record.key, record.split) for record, _, _ in known
    )


def _second_generation(known: Iterable[_Known], evidence: Evidence) -> int | None:
    born, killed_in = evidence.born, evidence.killed_in
    if born is None:
        return None
    return sum(sent.split in born and record.batch > killed_in for record, _, sent in known)


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
    """Compare a run's output with the records sent, in a new process.

    Raises:
        DemoFailedError: If the files cannot be read.
    """
    command = [sys.executable, "-m", "fanout.demo.verification", str(workspace.root)]
    if workspace.s3 is not None:
        command.append(workspace.s3)
    done = run_command(command)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise DemoFailedError(f"the output cannot be compared with the records sent: {lines[-1]}")
    return msgspec.json.decode(done.stdout, type=Proof)


def main(root: str, s3: str | None = None) -> None:
    """Print the proof of a run as JSON: of its directory, and its endpoint of S3 if it has one."""
    workspace = Workspace(Path(root), s3)
    evidence = msgspec.json.decode(workspace.evidence.read_bytes(), type=Evidence)
    proof = verify(evidence, list(workspace.read_output()))
    sys.stdout.buffer.write(msgspec.json.encode(proof))


if __name__ == "__main__":
    main(*sys.argv[1:])
