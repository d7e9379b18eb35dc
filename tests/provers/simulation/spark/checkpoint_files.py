"""The files of a checkpoint, read past all faults: to check, damage and restore them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final

from fanout.landing.log.entries import BATCHES, ORIGIN, batch_ids
from tests.provers.simulation.spark.disk import DiskFile, DiskFolder

if TYPE_CHECKING:
    from random import Random

    from tests.provers.simulation.spark.faults import FileDamage
    from tests.provers.simulation.spark.process import SimMachine

__all__ = ("ROOT", "CheckpointFiles", "LocalFiles", "RemoteFiles", "damage")

ROOT = "/data/checkpoint/fanout"


class CheckpointFiles(Protocol):
    """The files of a checkpoint, by their names below it."""

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory, temporaries included."""

    def read(self, name: str, *, durable: bool) -> bytes | None:
        """Return a file's bytes; those that nothing can take away if `durable`."""

    def put(self, name: str, data: bytes | None) -> None:
        """Give a file other bytes, durably; None takes it away."""


@final
@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A checkpoint on the disk of a machine.

    Args:
        machine: The machine.
    """

    machine: SimMachine

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory, temporaries included."""
        try:
            return list(self.machine.disk.folder(f"{ROOT}/{directory}").entries)
        except FileNotFoundError:
            return []

    def read(self, name: str, *, durable: bool) -> bytes | None:
        """Return a file's bytes; those that nothing can take away if `durable`."""
        if durable:
            node = self.machine.disk.durable(f"{ROOT}/{name}")
            return node.synced if isinstance(node, DiskFile) else None
        try:
            return self.machine.disk.file(f"{ROOT}/{name}").data
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes | None) -> None:
        """Give a file other bytes, durably; None takes it away."""
        above, _, last = f"{ROOT}/{name}".rpartition("/")
        folder: DiskFolder = self.machine.disk.folder(above)
        for names in (folder.entries, folder.synced):
            if data is None:
                names.pop(last, None)
            else:
                names[last] = DiskFile(data, data)


@final
@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """A checkpoint in a store, all of which is durable.

    Args:
        objects: What the store holds.
    """

    objects: dict[str, bytes] = field(default_factory=dict)

    def names(self, directory: str) -> list[str]:
        """Return what is in a directory."""
        prefix = f"{directory}/"
        return [name.removeprefix(prefix) for name in self.objects if name.startswith(prefix)]

    def read(self, name: str, *, durable: bool) -> bytes | None:
        """Return an object's bytes."""
        del durable
        return self.objects.get(name)

    def put(self, name: str, data: bytes | None) -> None:
        """Give an object other bytes; None takes it away."""
        if data is None:
            del self.objects[name]
        else:
            self.objects[name] = data


def damage(
    files: CheckpointFiles, harm: FileDamage, random: Random, done: int
) -> tuple[str, bytes] | None:
    """Cut a file off, or take it away.

    The newest entry is not taken away while Spark still asks for its batch: nothing would tell that
    from a batch that was not written.

    Args:
        files: The checkpoint.
        harm: What is done.
        random: Which file is chosen.
        done: The newest batch that Spark takes for done.

    Returns:
        Its name and what it was; None where there is no such file.
    """
    candidates = [ORIGIN] if harm.kind == ORIGIN else []
    candidates += [f"{harm.kind}/{name}" for name in sorted(files.names(harm.kind))]
    newest = max(batch_ids(files.names(BATCHES)), default=-1)
    if harm.kind == BATCHES and harm.keep is None and done < newest:
        candidates = candidates[:-1]
    whole = [(name, data) for name in candidates if (data := files.read(name, durable=True))]
    if not whole:
        return None
    name, data = random.choice(whole)
    files.put(name, None if harm.keep is None else data[: int(harm.keep * len(data))])
    return name, data
