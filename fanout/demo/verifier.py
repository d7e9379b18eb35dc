"""Prove a run in a process that shares nothing with it but its files: no Spark, no service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from fanout.demo.options import DemoFailedError
from fanout.demo.shuffled import verify_shuffled
from fanout.demo.verification import Proof, verify
from fanout.demo.workspace import Workspace

__all__ = ("main", "verify_in_process")


def verify_in_process(workspace: Workspace) -> Proof:
    """Compare a run's output with what was sent, in a new process.

    Raises:
        DemoFailedError: If the files cannot be read.
    """
    command = [sys.executable, "-m", "fanout.demo.verifier", str(workspace.root)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own module
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise DemoFailedError(f"the output cannot be compared with what was sent: {lines[-1]}")
    return msgspec.json.decode(done.stdout, type=Proof)


def main(root: str) -> None:
    """Print the proof of the run in a directory as JSON."""
    workspace = Workspace(Path(root))
    sent, read = workspace.read_sent(), list(workspace.read_output())
    reported, restart = workspace.read_reported(), workspace.read_restart()
    if reported is None:
        proof = verify(sent, read, workspace.read_parents(), restart)
    else:
        proof = verify_shuffled(sent, read, reported, restart)
    sys.stdout.buffer.write(msgspec.json.encode(proof))


if __name__ == "__main__":
    main(sys.argv[1])
