"""Run the demo: start the service, conduct the run, compare its output, and clean up."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from fanout.demo.conductor import Conductor
from fanout.demo.options import DemoFailedError, ServiceName, StorageName
from fanout.demo.progress import RunProgress
from fanout.demo.report import DemoReport
from fanout.demo.verification import verify_in_process
from fanout.demo.workspace import Workspace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rich.console import Console

    from fanout.demo.kafka import KafkaStream
    from fanout.demo.kinesis import KinesisStream
    from fanout.demo.options import DemoOptions


def run_demo(options: DemoOptions, console: Console) -> DemoReport:
    """Run the demo, show its progress, and report; the proof may have failed.

    Raises:
        DemoFailedError: If the demo could not be completed.
        SetupError: If the service or S3 cannot be started on this machine.
        KeyboardInterrupt: On Ctrl-C, after all children have ended and all files are deleted.
    """
    begun = time.perf_counter()
    progress = RunProgress(console, options.records)
    with (
        TemporaryDirectory(prefix="fanout-demo-") as root,
        _s3(options) as s3,
        _start(options) as stream,
        progress.bars,
    ):
        workspace = Workspace(root, s3)
        workspace.scratch.mkdir()
        driver_log = Path(root, "driver.log")
        conductor = Conductor(options, stream=stream, workspace=workspace, progress=progress)
        try:
            with driver_log.open("wb") as log:
                asyncio.run(conductor.run(log))
        except DemoFailedError as error:
            if error.explained:
                raise
            raise DemoFailedError(f"{error}{_tail(driver_log)}") from error
        workspace.evidence.write_bytes(msgspec.json.encode(conductor.evidence))
        proof = verify_in_process(workspace)
        faults = stream.faults()
    return DemoReport(
        options=options,
        proof=proof,
        progress=progress,
        faults=faults,
        second_reshard=conductor.second_reshard,
        seconds=time.perf_counter() - begun,
    )


def _start(options: DemoOptions) -> AbstractContextManager[KinesisStream | KafkaStream]:
    # Only the chosen service is imported: the libraries of the other may not be installed.
    if options.source is ServiceName.KINESIS:
        from fanout.demo.kinesis import start_kinesis  # noqa: PLC0415 - see above

        return start_kinesis(options.shards)
    from fanout.demo.kafka import start_kafka  # noqa: PLC0415 - see above

    return start_kafka(options.shards)


def _s3(options: DemoOptions) -> AbstractContextManager[str | None]:
    """Serve S3, if checkpoints and output are to be there, and yield its endpoint."""
    if options.storage is StorageName.DISK:
        return nullcontext()
    from fanout.testing.s3_clients import s3a_jars  # noqa: PLC0415 - see above
    from fanout.testing.s3_server import serve_s3  # noqa: PLC0415 - see above

    s3a_jars()  # before a driver needs them
    return serve_s3()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-15:]
    return "\n".join(["; the log of Spark drivers ends with:", *lines]) if lines else ""
