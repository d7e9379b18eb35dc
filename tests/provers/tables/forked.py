"""Commands of `fanout` in forks of a process that has imported everything, and has no threads."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final

import pyiceberg.catalog
from pyiceberg.utils.config import Config

from tests.support.doomed import Kill, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "fanout.cli.app",
        "fanout.cli.land",
        "fanout.landing.lander",
        "fanout.landing.projections.delta",
        "fanout.landing.projections.iceberg",
        "fanout.landing.storage.object_storage",
        "fanout.kinesis.reading.kinesis_source",
        "pyiceberg.catalog.rest",
        "pyiceberg.catalog.sql",
        "tests.provers.tables.forked",
    ]
)
# The longest that a run takes on a busy machine, in seconds.
_LONGEST: Final = 300.0


def run_forked(
    kill: Kill, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command of `fanout`, and kill it; return its exit code, and what it said."""
    with NamedTemporaryFile("r") as log:
        arguments = (kill, [*command], dict(environment), log.name)
        process = _CONTEXT.Process(target=_run, args=arguments)
        process.start()
        process.join(_LONGEST)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"it hangs: {command}")
        return process.exitcode, log.read()


def _run(kill: Kill, command: list[str], environment: dict[str, str], log: str) -> None:
    os.setsid()  # it is killed as a group
    os.environ.clear()
    os.environ.update(environment)
    with Path(log).open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    pyiceberg.catalog._ENV_CONFIG = Config()  # it was read before the fork
    sys.argv = ["fanout", *command]
    wrap(kill)
    from fanout.cli import main  # noqa: PLC0415 - as the command does

    main()
