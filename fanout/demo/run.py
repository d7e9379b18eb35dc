"""Run the demo: start the service, conduct the run, compare its output, and clean up."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fanout.demo.conductor import Conductor
from fanout.demo.options import DemoFailedError, ServiceName, StorageName
from fanout.demo.plan import draw_plan
from fanout.demo.progress import ProgressDisplay
from fanout.demo.report import DemoReport
from fanout.demo.verification import verify_in_process
from fanout.demo.workspace import SentLog, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console

    from fanout.demo.options import DemoOptions
    from fanout.demo.service import DemoService

_LOG_TAIL = 15


def run_demo(options: DemoOptions, console: Console) -> DemoReport:
    """Run the demo.

    Args:
        options: The options of the user.
        console: Shows the progress.

    Returns:
        The report; its proof may have failed.

    Raises:
        DemoFailedError: If the demo could not be completed.
        SetupError: If the service or S3 cannot be started on this machine.
        KeyboardInterrupt: On Ctrl-C, after all children have ended and all files are deleted.
    """
    begun = time.perf_counter()
    with (
        TemporaryDirectory(prefix="fanout-demo-") as root,
        _s3(options) as s3,
        _start(options) as service,
        ProgressDisplay(console, options.records) as display,
    ):
        workspace = Workspace(Path(root), s3)
        workspace.scratch.mkdir()
        conductor = Conductor(
            options, draw_plan(options), service=service, workspace=workspace, display=display
        )
        try:
            with (
                workspace.sent.open("w", newline="") as sent,
                workspace.driver_log.open("wb") as driver_log,
            ):
                asyncio.run(conductor.run(SentLog(sent), driver_log))
        except DemoFailedError as error:
            if error.explained:
                raise
            raise DemoFailedError(f"{error}{_tail(workspace.driver_log)}") from error
        if options.source is not ServiceName.KAFKA_SHARE:  # which has no order
            workspace.write_parents(conductor.parents)
        if conductor.restart is not None:
            workspace.write_restart(conductor.restart)
        proof = verify_in_process(workspace)
        faults = service.faults()
    tally = conductor.tally
    return DemoReport(
        source=options.source,
        seed=options.seed,
        proof=proof,
        splits_seen=len(tally.splits),
        resubscriptions=None if options.dataframe else tally.resubscriptions,
        faults=faults,
        restarts=tally.restarts,
        landers_killed=tally.landers_killed if options.landers else None,
        processes_killed=tally.processes_killed if options.dataframe else None,
        replayed=tuple(tally.replayed),
        second_reshard=conductor.second_reshard,
        seconds=time.perf_counter() - begun,
    )


def _start(options: DemoOptions) -> AbstractContextManager[DemoService]:
    # Only the chosen service is imported: the libraries of the other may not be installed.
    match options.source:
        case ServiceName.KINESIS:
            from fanout.demo.kinesis import start_kinesis  # noqa: PLC0415 - see above

            return start_kinesis(options.shards)
        case ServiceName.KAFKA:
            from fanout.demo.kafka import start_kafka  # noqa: PLC0415 - see above

            return start_kafka(options.shards)
        case ServiceName.KAFKA_SHARE:
            from fanout.demo.kafka import start_kafka  # noqa: PLC0415 - see above

            return start_kafka(options.shards, share=True)


@contextmanager
def _s3(options: DemoOptions) -> Iterator[str | None]:
    """Serve S3, if checkpoints and output are to be there, and yield its endpoint."""
    if options.storage is StorageName.DISK:
        yield None
        return
    from fanout.testing.s3_clients import s3a_jars  # noqa: PLC0415 - see above
    from fanout.testing.s3_server import serve_s3  # noqa: PLC0415 - see above

    s3a_jars()  # before a driver needs them
    with serve_s3() as endpoint:
        yield endpoint


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
    return "\n".join(["; the log of Spark drivers ends with:", *lines]) if lines else ""
