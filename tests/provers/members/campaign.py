"""Let members and their services fail for some minutes, and judge what the members wrote down."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, final

from tests.provers.members.judge import Verdict, judge
from tests.provers.members.member import __file__ as _member_file
from tests.provers.members.services import KafkaService, KinesisService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.provers.members.services import Service

__all__ = ("MembersReport", "run_members_campaign")

_SERVICES: Final[Mapping[str, type[KinesisService | KafkaService]]] = {
    "kinesis": KinesisService,
    "kafka": KafkaService,
}
_FILE: Final = Path(_member_file)
# The longest wait for all keys to go on after a fault, in seconds.
_RECOVER: Final = 180.0
_LOOK: Final = 0.5
# How long a member is given to leave.
_LEAVE: Final = 60.0


@final
@dataclass(slots=True)
class MembersReport:
    """What a campaign has found.

    Args:
        seconds: How long faults struck.
        times: How often each fault came.
        recovered: The longest time after each fault until every key had come again, in seconds.
        stuck: The faults after which a key did not come within three minutes.
        verdict: What the journals show.
    """

    seconds: float = 0.0
    times: Counter[str] = field(default_factory=Counter)
    recovered: dict[str, float] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def holds(self) -> bool:
        """Whether no rule was broken, and nothing was stuck."""
        return not self.stuck and self.verdict.holds

    def to_json(self) -> str:
        """Write the report on one line."""
        document: dict[str, Any] = {"seconds": round(self.seconds), "times": self.times}
        document |= {"recovered": self.recovered, "stuck": self.stuck}
        return json.dumps(document | self.verdict.to_json() | {"holds": self.holds})


async def run_members_campaign(
    service: str,
    minutes: float,
    seed: int,
    *,
    members: int,
    splits: int,
    note: Callable[[str], None],
) -> MembersReport:
    """Run a campaign.

    Args:
        service: `kinesis` or `kafka`.
        minutes: For how long faults begin; each comes once at least.
        seed: What their order is drawn from.
        members: How many processes share the stream.
        splits: How many shards or partitions there are in the beginning.
        note: Receives a line for each fault.
    """
    random = Random(seed)
    with TemporaryDirectory() as scratch:
        async with _SERVICES[service].running(splits, random) as running:
            campaign = _Campaign(running, random, Path(scratch), note)
            return await campaign.run(minutes * 60, members)


@final
class _Campaign:
    def __init__(
        self, service: Service, random: Random, directory: Path, note: Callable[[str], None]
    ) -> None:
        self._service = service
        self._random = random
        self._directory = directory
        self._note = note
        self._members: dict[str, asyncio.subprocess.Process] = {}
        self._started = 0
        self._report = MembersReport()
        self._newest = _Newest(directory)

    async def run(self, seconds: float, members: int) -> MembersReport:
        """Run members and faults, and judge at the end."""
        enough = asyncio.Event()
        loading = asyncio.create_task(self._service.load(enough))
        try:
            for _ in range(members):
                await self._start()
            await self._all_go_on("the start")
            began = time.monotonic()
            faults = self._faults()
            while time.monotonic() - began < seconds or not self._report.times:
                for name in self._random.sample(list(faults), len(faults)):
                    await self._strike(name, faults[name])
            self._report.seconds = time.monotonic() - began
            enough.set()
            await loading
            await self._all_is_read()
        finally:
            loading.cancel()
            await asyncio.gather(*(self._leave(name) for name in list(self._members)))
        self._report.verdict = await asyncio.to_thread(judge, self._directory, self._service.put)
        return self._report

    def _faults(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "a member is killed": self._kill,
            "a member stands still, and goes on": self._freeze,
            "all members are replaced in turn": self._replace_all,
            "a member comes, and one leaves": self._come_and_go,
            **self._service.faults,
        }

    async def _strike(self, name: str, fault: Callable[[], Awaitable[None]]) -> None:
        began = time.monotonic()
        await fault()
        over = time.monotonic()
        self._report.times[name] += 1
        took = await self._all_go_on(name)
        longest = self._report.recovered
        longest[name] = round(max(longest.get(name, 0.0), took), 1)
        self._note(f"{name}: {over - began:.0f} s, all keys again after {took:.1f} s")

    async def _start(self) -> None:
        self._started += 1
        name = f"member{self._started}"
        spec = self._service.spec | {"directory": str(self._directory)}
        path = os.pathsep.join(filter(None, [str(_FILE.parents[3]), os.environ.get("PYTHONPATH")]))
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        self._members[name] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"tests.provers.members.{_FILE.stem}",
            name,
            json.dumps(spec),
            env={**os.environ, **keys, "PYTHONPATH": path},
        )
        journal = self._directory / f"{name}.log"
        while name in self._members and not (journal.exists() and journal.stat().st_size):
            await asyncio.sleep(_LOOK / 10)  # who has not begun yet cannot leave in order
            self._check()

    async def _leave(self, name: str) -> None:
        member = self._members.pop(name)
        if member.returncode is None:
            member.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_LEAVE):
                await member.wait()
        except TimeoutError:
            self._report.stuck.append(f"{name} did not leave")
            member.kill()
            await member.wait()
        if member.returncode:
            self._report.stuck.append(f"{name} ended with {member.returncode}")

    def _any(self) -> str:
        return self._random.choice(sorted(self._members))

    async def _kill(self) -> None:
        member = self._members.pop(self._any())
        member.kill()
        await member.wait()
        await self._start()

    async def _freeze(self) -> None:
        member = self._members[self._any()]
        member.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2.5 * self._service.failover)
        member.send_signal(signal.SIGCONT)

    async def _replace_all(self) -> None:
        for name in sorted(self._members):
            await self._start()
            await self._leave(name)

    async def _come_and_go(self) -> None:
        await self._start()
        await self._all_go_on("a member came")
        await self._leave(self._any())

    async def _all_go_on(self, after: str) -> float:
        """Wait until every key has come that is put from now on."""
        began = time.monotonic()
        due = dict(self._service.put)
        while True:
            await asyncio.sleep(_LOOK)
            newest = await asyncio.to_thread(self._newest.look)
            late = [key for key, count in due.items() if newest[key] < count]
            if due and not late:
                return time.monotonic() - began
            due = due or dict(self._service.put)
            self._check()
            if time.monotonic() - began > _RECOVER:
                self._report.stuck.append(f"{len(late)} keys after {after}")
                self._note(f"stuck after {after}: {late[:10]}")
                return time.monotonic() - began

    async def _all_is_read(self) -> None:
        deadline = time.monotonic() + _RECOVER
        while time.monotonic() < deadline:
            newest = await asyncio.to_thread(self._newest.look)
            if all(newest[key] + 1 >= count for key, count in self._service.put.items()):
                return
            await asyncio.sleep(_LOOK)

    def _check(self) -> None:
        for name, member in list(self._members.items()):
            if member.returncode is not None:
                del self._members[name]
                self._report.stuck.append(f"{name} ended by itself with {member.returncode}")


@final
class _Newest:
    """The highest number of each key that any member has got, read from where the last look was."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()

    def look(self) -> Counter[str]:
        """Read what was written since the last look."""
        for path in self._directory.glob("*.log"):
            with path.open("rb") as file:
                file.seek(self._read[path.name])
                whole = file.read().rpartition(b"\n")[0]
            self._read[path.name] += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                for record in json.loads(line).get("records", ()):
                    key, number = record["key"], record["number"]
                    self._numbers[key] = max(self._numbers[key], number)
        return self._numbers
