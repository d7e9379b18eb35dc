"""Compare the output of the queries with the records sent.

`python -m fanout.demo.verification DIRECTORY [S3]` does so in a process that shares nothing with
the run but its files: no Spark, no service.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

import msgspec

from fanout._child_process import run_command
from fanout.demo.options import DemoFailedError
from fanout.demo.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanout.demo.records import ReadRecord, Reported, Restart, SentRecord

# A record that was read, and the same record as it was sent.
_Pair: TypeAlias = "tuple[ReadRecord, SentRecord]"


@final
class Proof(msgspec.Struct, frozen=True):
    """The result of the comparison.

    Args:
        records_sent: Records that the service accepted.
        records_read: Records in the output.
        batches: Batches in the output.
        lost: Records that were sent and never read.
        duplicated: Records that were read more than once, counted without the first time.
        altered: Records that were not sent: of an unknown number, or another key, place or data.
        out_of_order: Records in a later batch than one that follows them in their split, or in an
            earlier batch than one of a parent split; None where a service promises no order.
        second_generation: Records of splits that were created between a kill and the restart, in
            batches after the one that was killed; None without a kill.
        watermark_violations: Records with an event time that a watermark had excluded which was
            reported before, and watermarks below one that was reported before; None without a
            shuffle.
        watermark_passed: Records with an event time that the last watermark had excluded; None
            without a shuffle.
    """

    records_sent: int
    records_read: int
    batches: int
    lost: int
    duplicated: int
    altered: int
    out_of_order: int | None
    second_generation: int | None
    watermark_violations: int | None = None
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


def verify(
    sent: Iterable[SentRecord],
    read: Sequence[ReadRecord],
    parents: Mapping[str, Sequence[str]] | None,
    restart: Restart | None,
) -> Proof:
    """Compare the output with the records sent.

    Order is checked between batches: Spark does not order rows within one, and there both the
    split and the sequence number are columns to sort by.

    Args:
        sent: The records that the producer sent.
        read: The records that the query wrote, in any order.
        parents: The parents of every split that has any; None where splits have no order.
        restart: The restart of the query; None if it was not killed.
    """
    expected = {record.number: record for record in sent}
    return prove(
        expected,
        read,
        altered=sum(not _same(record, expected) for record in read),
        out_of_order=None if parents is None else misplaced(read, parents),
        second_generation=None if restart is None else _second_generation(read, restart),
    )


def prove(
    expected: Mapping[int, SentRecord],
    read: Sequence[ReadRecord],
    *,
    altered: int,
    out_of_order: int | None,
    second_generation: int | None,
    watermark_violations: int | None = None,
    watermark_passed: int | None = None,
) -> Proof:
    """Count lost and duplicated records, and combine them with the other counts."""
    seen = Counter(record.number for record in read if record.number in expected)
    return Proof(
        records_sent=len(expected),
        records_read=len(read),
        batches=len({record.batch for record in read}),
        lost=len(expected) - len(seen),
        duplicated=seen.total() - len(seen),
        altered=altered,
        out_of_order=out_of_order,
        second_generation=second_generation,
        watermark_violations=watermark_violations,
        watermark_passed=watermark_passed,
    )


def _same(record: ReadRecord, expected: Mapping[int, SentRecord]) -> bool:
    sent = None if record.number is None else expected.get(record.number)
    return sent is not None and (record.key, record.split, record.sequence, record.digest) == (
        sent.key,
        sent.split,
        sent.sequence,
        sent.digest,
    )


def _second_generation(read: Iterable[ReadRecord], restart: Restart) -> int:
    born = frozenset(restart.born)
    return sum(record.split in born and record.batch > restart.killed_in for record in read)


def misplaced(read: Sequence[ReadRecord], parents: Mapping[str, Sequence[str]]) -> int:
    """Count the records in a batch behind, or before, where the order of their split has them.

    Args:
        read: The records that were read, in any order.
        parents: The parents of every split that has any.
    """
    last_batch: dict[str, int] = {}
    for record in read:
        last_batch[record.split] = max(record.batch, last_batch.get(record.split, 0))
    ready = {
        split: max((last_batch.get(each, 0) for each in _ancestors(split, parents)), default=0)
        for split in last_batch
    }
    count = 0
    newest: dict[str, int] = {}
    for batch, group in groupby(sorted(read, key=attrgetter("batch")), attrgetter("batch")):
        records = list(group)
        count += sum(
            batch < ready[record.split] or record.sequence < newest.get(record.split, 0)
            for record in records
        )
        for record in records:
            newest[record.split] = max(record.sequence, newest.get(record.split, 0))
    return count


def _ancestors(split: str, parents: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    left = [split]
    while left:
        new = set(parents.get(left.pop(), ())) - found
        found |= new
        left += new
    return found


def verify_shuffled(
    sent: Iterable[SentRecord],
    read: Sequence[ReadRecord],
    reported: Sequence[Reported],
    restart: Restart | None,
) -> Proof:
    """Compare the output of a query that reads a shuffle with the records sent to the writing one.

    Records of a key are to be in one partition, and those that came from one split in its order: a
    key that moved to another split, because there are more of them, has no order between the two.

    Args:
        sent: The records that the producer sent.
        read: The records that the query wrote, in any order.
        reported: The watermark behind each batch, in the order in which they were reported.
        restart: The restart of the query that writes the shuffle; None if it was not killed.
    """
    expected = {record.number: record for record in sent}
    pairs = [(record, known) for record in read if (known := _known(record, expected))]
    return prove(
        expected,
        read,
        altered=len(read) - len(pairs),
        out_of_order=misplaced(read, {}) + _keys_misplaced(pairs),
        second_generation=None if restart is None else _second_generation_of_pairs(pairs, restart),
        watermark_violations=_late(read, reported) + _backwards(reported),
        watermark_passed=_passed(read, reported),
    )


def _known(record: ReadRecord, expected: Mapping[int, SentRecord]) -> SentRecord | None:
    """Return a record as it was sent; None if it was not sent in this form."""
    if record.number is None or (sent := expected.get(record.number)) is None:
        return None
    same = (record.key, record.digest, record.time) == (sent.key, sent.digest, sent.time)
    return sent if same else None


def _keys_misplaced(pairs: Iterable[_Pair]) -> int:
    """Count the records in another partition than the first of their key, or behind a later one."""
    count = 0
    partitions: dict[str, str] = {}
    newest: dict[tuple[str, str], int] = {}
    for record, sent in sorted(pairs, key=lambda pair: (pair[0].split, pair[0].sequence)):
        origin = (sent.key, sent.split)
        before = newest.get(origin, 0)
        partition = partitions.setdefault(sent.key, record.split)
        count += record.split != partition or sent.sequence < before
        newest[origin] = max(sent.sequence, before)
    return count


def _second_generation_of_pairs(pairs: Iterable[_Pair], restart: Restart) -> int:
    born = frozenset(restart.born)
    return sum(sent.split in born for _, sent in pairs)


def _late(read: Iterable[ReadRecord], reported: Iterable[Reported]) -> int:
    """Count the records that came after a watermark that had excluded them."""
    heights = {batch: _height(watermark) for batch, watermark in reported}
    batches = {record.batch for record in read}
    excluded = {
        batch: max((heights[other] for other in heights if other < batch), default=-math.inf)
        for batch in batches
    }
    return sum(record.time is not None and record.time <= excluded[record.batch] for record in read)


def _backwards(reported: Iterable[Reported]) -> int:
    """Count the watermarks below one that was reported before."""
    heights = [_height(watermark) for _, watermark in reported]
    highest = accumulate(heights, max)
    return sum(height < before for before, height in zip(highest, heights[1:], strict=False))


def _passed(read: Iterable[ReadRecord], reported: Sequence[Reported]) -> int:
    """Count the records that the last watermark excludes."""
    last = _height(reported[-1][1]) if reported else -math.inf
    return sum(record.time is not None and record.time <= last for record in read)


def _height(watermark: int | None) -> float:
    return -math.inf if watermark is None else watermark


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
    """Print the proof of a run as JSON.

    Args:
        root: The directory of the run.
        s3: The endpoint of S3, if its output is there.
    """
    workspace = Workspace(Path(root), s3)
    sent, read = workspace.read_sent(), list(workspace.read_output())
    reported, restart = workspace.read_reported(), workspace.read_restart()
    if reported is None:
        proof = verify(sent, read, workspace.read_parents(), restart)
    else:
        proof = verify_shuffled(sent, read, reported, restart)
    sys.stdout.buffer.write(msgspec.json.encode(proof))


if __name__ == "__main__":
    main(*sys.argv[1:])
