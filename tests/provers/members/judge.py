"""Compare what members of a group have written down with what was put, and with the rules."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ("Ownership", "Verdict", "judge", "ownerships")

_SHOWN: Final = 10
_IN_ORDER: Final = ("handed_over", "left")


@final
@dataclass(slots=True)
class _Got:
    """A batch that a member got."""

    time: float
    records: list[tuple[str, int]]
    stored: bool = False


@final
@dataclass(slots=True)
class Ownership:
    """A split in the hands of one member.

    Args:
        member: Its name.
        split: The split.
        began: When the member was granted it.
        ended: When it was gone; None if the member died with it.
        how: `handed_over`, `lost`, `left` with its member in order, or None.
        got: The batches that it got.
    """

    member: str
    split: str
    began: float
    ended: float | None = None
    how: str | None = None
    got: list[_Got] = field(default_factory=list)


@final
@dataclass(slots=True)
class Verdict:
    """What a campaign of members has shown.

    Args:
        records: How many different records came.
        lost: Records that never came.
        again: Records that came again and were not stored: what a crash costs.
        stored_again: Records that came again although their position was stored.
        again_after_hand_over: Records that came again although their member gave the split up.
        disordered: Records that came out of order within an ownership.
        two_owners: Batches of a split that came while another member was between two of its own.
        moves: How often a split went from one member to another.
        pauses: Seconds from a split's last batch at one member to its first at the next, after a
            hand-over.
        failures: The errors after which members opened their streams again.
        examples: Some of what is wrong.
    """

    records: int = 0
    lost: int = 0
    again: int = 0
    stored_again: int = 0
    again_after_hand_over: int = 0
    disordered: int = 0
    two_owners: int = 0
    moves: int = 0
    pauses: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether no rule was broken."""
        return not any(self.wrong().values())

    def wrong(self) -> dict[str, int]:
        """Return the counts that have to be zero."""
        names = ("lost", "stored_again", "again_after_hand_over", "disordered", "two_owners")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the pauses in short."""
        pauses = self.pauses
        return {
            "records": self.records,
            **self.wrong(),
            "again": self.again,
            "moves": self.moves,
            "hand-overs": len(pauses),
            "median pause": round(median(pauses), 2) if pauses else None,
            "longest pause": round(max(pauses), 2) if pauses else None,
            "failures": dict(self.failures),
            "examples": self.examples,
        }


def ownerships(directory: Path, verdict: Verdict) -> dict[str, list[Ownership]]:
    """Read the journals: for each split who had it, in the order in which that began."""
    by_split: defaultdict[str, list[Ownership]] = defaultdict(list)
    for path in sorted(directory.glob("*.log")):
        for each in _of_member(path.stem, _lines(path), verdict):
            by_split[each.split].append(each)
    for owned in by_split.values():
        owned.sort(key=lambda each: each.began)
    return by_split


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal, of which the last one may be cut off by a kill."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def _of_member(
    member: str, lines: Iterable[dict[str, Any]], verdict: Verdict
) -> Iterator[Ownership]:
    now: dict[str, Ownership] = {}
    batches: dict[int, _Got] = {}
    for line in lines:
        match line:
            case {"event": event, "split": split, "time": time}:
                if split in now:
                    yield _end(now.pop(split), time, event, complete=line["complete"])
                if event == "granted":
                    now[split] = Ownership(member, split, time)
            case {"got": number, "split": split, "records": records, "time": time}:
                keyed = [(record["key"], record["number"]) for record in records]
                batches[number] = _Got(time, keyed)
                if split in now:
                    now[split].got.append(batches[number])
                else:
                    verdict.two_owners += 1
                    verdict.examples.append(f"{member} got {split} at {time}: it has it no more")
            case {"stored": number}:
                batches[number].stored = True
            case {"left": _, "time": time, "complete": complete}:
                how = "left" if complete else "lost"
                now = {split: _end(each, time, how) for split, each in now.items()}
            case {"failed": errors}:
                verdict.failures.update(errors)
            case _:
                pass
    yield from now.values()


def _end(owned: Ownership, time: float, event: str, *, complete: bool | None = True) -> Ownership:
    owned.ended = time
    owned.how = "lost" if event == "handed_over" and not complete else event
    return owned


def judge(directory: Path, put: Mapping[str, int]) -> Verdict:
    """Judge the journals of a directory.

    Args:
        directory: Where the members have written them.
        put: How many records of each key were put.
    """
    verdict = Verdict()
    by_split = ownerships(directory, verdict)
    for owned in by_split.values():
        _judge_owners(owned, verdict)
    _judge_records([each for owned in by_split.values() for each in owned], put, verdict)
    verdict.examples = verdict.examples[:_SHOWN]
    return verdict


def _judge_owners(owned: list[Ownership], verdict: Verdict) -> None:
    """Judge who had one split, and when."""
    with_records = [each for each in owned if each.got]
    for one, next_one in pairwise(with_records):
        if one.member != next_one.member:
            verdict.moves += 1
        last, first = one.got[-1].time, next_one.got[0].time
        if last > first:
            verdict.two_owners += 1
            verdict.examples.append(
                f"{one.member} got {one.split} {last - first:.2f} s after {next_one.member} had"
            )
        if one.how in _IN_ORDER and one.member != next_one.member:
            verdict.pauses.append(first - last)
    for each in with_records:
        due: dict[str, int] = {}
        for key, number in (record for batch in each.got for record in batch.records):
            if number != due.get(key, number):
                verdict.disordered += 1
                verdict.examples.append(f"{each.member} got {key} {number}, {due[key]} was due")
            due[key] = number + 1


def _judge_records(owned: list[Ownership], put: Mapping[str, int], verdict: Verdict) -> None:
    """Judge how often each record came, and why one came again."""
    came: defaultdict[tuple[str, int], list[tuple[float, Ownership, _Got]]] = defaultdict(list)
    for each in owned:
        for batch in each.got:
            for record in batch.records:
                came[record].append((batch.time, each, batch))
    verdict.records = len(came)
    missing = [
        (key, number)
        for key, count in put.items()
        for number in range(count)
        if (key, number) not in came
    ]
    verdict.lost = len(missing)
    verdict.examples += [f"{key} {number} never came" for key, number in missing[:_SHOWN]]
    for record, times in came.items():
        times.sort(key=lambda each: each[0])
        for (_, before, batch), (_, after, _again) in pairwise(times):
            what = "again"
            if batch.stored:
                what = "stored_again"
            elif before.how in _IN_ORDER:
                what = "again_after_hand_over"
            setattr(verdict, what, getattr(verdict, what) + 1)
            if what != "again":
                verdict.examples.append(f"{record} {what}: {before.member}, then {after.member}")
