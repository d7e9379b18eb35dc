from __future__ import annotations

import asyncio
import re
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from fanout.errors import CheckpointError
from fanout.landing.storage.local_storage import LocalStorage
from tests.provers.simulation.spark import DriverKill
from tests.provers.simulation.spark.disk import Disk, DiskFile, sync
from tests.provers.simulation.spark.disk_stand_ins import DiskPath
from tests.provers.simulation.spark.process import SimMachine
from tests.provers.tests.simulation.spark.on_disk import on_disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("a", "b", "folder/a", "folder/b", "folder/deep/a", "a/below")
ANY = 30


@pytest.fixture
def machine() -> SimMachine:
    return SimMachine(Random(1))


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.make_folder("/folder")
    sync(disk.root)
    return disk


def use(root: Any, seed: int) -> list[object]:
    """Use a checkpoint at random, and return what it has answered."""
    random = Random(seed)
    storage = LocalStorage(cast("Path", root))
    answers: list[object] = []

    def publish(name: str) -> None:
        path = storage.scratch() / f"part-{random.randrange(3)}"
        with path.open("wb") as file:
            file.write(random.randbytes(5))
        storage.publish(path, name)

    actions: list[Callable[[str], object]] = [
        lambda name: storage.create(name, random.randbytes(9)),
        lambda name: storage.read(name, limit=100),
        lambda name: storage.list(name.rpartition("/")[0] or "folder"),
        # "a" may be a directory, whose size is each file system's own business.
        lambda name: None if name == "a" else storage.size(name),
        storage.delete,
        publish,
        lambda _: storage.sweep(),
    ]
    for _ in range(40):
        name, action = random.choice(NAMES), random.choice(actions)
        try:
            answers.append(action(name))
        except (FileExistsError, CheckpointError) as error:
            reported = re.sub(r"_tmp-\w+", "_tmp-", str(error)).replace(str(root), "")
            answers.append((type(error), reported))
    return answers


@pytest.mark.parametrize("seed", range(20))
def test_a_simulated_disk_answers_as_a_real_one(
    machine: SimMachine, tmp_path: Path, seed: int
) -> None:
    simulated = on_disk(machine, lambda: use(DiskPath("/checkpoint"), seed))
    assert simulated == use(tmp_path / "checkpoint", seed)


def test_bytes_survive_when_the_file_was_fsynced(disk: Disk) -> None:
    file = disk.create("/folder/a", exclusive=True)
    sync(disk.folder("/folder"))
    file.data = b"written"
    sync(file)
    for seed in range(ANY):
        assert file.after_power_loss(Random(seed)).data == b"written"


def test_bytes_that_were_not_fsynced_are_there_or_not_or_in_part() -> None:
    file = DiskFile(data=b"synced and more", synced=b"synced")
    left = {file.after_power_loss(Random(seed)).data for seed in range(ANY)}
    assert {b"synced", b"synced and more"} < left
    assert all(data.startswith(b"synced") for data in left)
    assert any(data.endswith(b"\0") for data in left)


def test_a_name_survives_when_its_directory_was_fsynced(disk: Disk) -> None:
    disk.create("/folder/a", exclusive=True)
    seen = set()
    for seed in range(ANY):
        left = disk.root.after_power_loss(Random(seed), {})
        folder = left.entries["folder"]
        assert not isinstance(folder, DiskFile)
        seen.add("a" in folder.entries)
    assert seen == {False, True}
    assert disk.durable("/folder/a") is None
    sync(disk.folder("/folder"))
    assert disk.durable("/folder/a") is disk.find("/folder/a")
    disk.lose_power(Random(1))
    assert disk.file("/folder/a").data == b""


def test_a_deletion_that_was_not_fsynced_may_not_have_happened(disk: Disk) -> None:
    disk.create("/folder/a", exclusive=True)
    sync(disk.folder("/folder"))
    disk.unlink("/folder/a")
    seen = set()
    for seed in range(ANY):
        folder = disk.root.after_power_loss(Random(seed), {}).entries["folder"]
        assert not isinstance(folder, DiskFile)
        seen.add("a" in folder.entries)
    assert seen == {False, True}


def test_both_names_of_a_file_lead_to_the_same_bytes_after_a_loss_of_power(disk: Disk) -> None:
    disk.create("/folder/a", exclusive=True).data = b"unsynced"
    disk.link("/folder/a", "/folder/b")
    sync(disk.folder("/folder"))
    for seed in range(ANY):
        copy = disk.root.after_power_loss(Random(seed), {}).entries["folder"]
        assert not isinstance(copy, DiskFile)
        assert copy.entries["a"] is copy.entries["b"]


def test_a_process_that_is_killed_does_nothing_more(machine: SimMachine) -> None:
    def work() -> None:
        storage = LocalStorage(cast("Path", DiskPath("/checkpoint")))
        storage.create("a", b"content")

    with pytest.raises(asyncio.CancelledError):
        on_disk(machine, work, [DriverKill(4)])
    # Not even the `finally` that would remove the temporary.
    (name,) = machine.disk.folder("/checkpoint").entries
    assert name.startswith("_tmp-")
    assert machine.disk.file(f"/checkpoint/{name}").data == b""
