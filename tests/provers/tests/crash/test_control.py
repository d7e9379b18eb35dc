from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.provers.crash.control import Control
from tests.provers.crash.moments import CrashMoment, Pipeline, Strike, StrikeKind

if TYPE_CHECKING:
    from pathlib import Path

STRIKE = Strike(CrashMoment.BEFORE_END, StrikeKind.KILL_BROKER, Pipeline.KAFKA)

_REACH = """
import sys
from pathlib import Path
from tests.provers.crash.control import Control
from tests.provers.crash.moments import CrashMoment, Pipeline
Control(Path(sys.argv[1])).reach(CrashMoment(sys.argv[2]), Pipeline.KAFKA)
print("went on")
"""


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path)


@pytest.mark.parametrize(
    ("moment", "pipeline"),
    [(CrashMoment.AFTER_END, Pipeline.KAFKA), (CrashMoment.BEFORE_END, Pipeline.KINESIS)],
)
def test_only_the_moment_that_is_armed_is_taken(
    control: Control, moment: CrashMoment, pipeline: Pipeline
) -> None:
    control.arm(STRIKE)
    control.reach(moment, pipeline)
    assert not control.taken()
    assert control.disarm()


def test_nothing_happens_where_nothing_is_armed(control: Control) -> None:
    control.reach(STRIKE.moment, STRIKE.pipeline)
    assert not control.taken()
    assert not control.disarm()


def test_one_alone_takes_a_strike_and_waits_until_it_is_released(control: Control) -> None:
    control.arm(STRIKE)
    ended = threading.Semaphore(0)

    def reach() -> None:
        control.reach(STRIKE.moment, None)
        ended.release()

    threads = [threading.Thread(target=reach) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads[1:]:
        assert ended.acquire(timeout=20)
    assert control.taken()
    assert not control.disarm()
    assert not ended.acquire(timeout=0.2)
    control.release()
    for thread in threads:
        thread.join(20)
    assert not control.taken()


def struck(control: Control, kind: StrikeKind) -> subprocess.CompletedProcess[bytes]:
    control.arm(Strike(CrashMoment.BEFORE_FLUSH, kind, Pipeline.KAFKA))
    return subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", _REACH, str(control.root), CrashMoment.BEFORE_FLUSH],
        capture_output=True,
        check=False,
        timeout=50,
    )


def test_a_worker_that_is_struck_dies(control: Control) -> None:
    assert struck(control, StrikeKind.KILL_WORKER).returncode == -signal.SIGKILL
    assert control.taken()


def test_a_driver_is_killed_with_its_jvm_and_a_task_of_it_goes_on(control: Control) -> None:
    driver = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)
    ]
    try:
        control.write_pids(*(process.pid for process in driver))
        task = struck(control, StrikeKind.KILL_DRIVER)
        assert task.stdout == b"went on\n"
        assert [process.wait(20) for process in driver] == [-signal.SIGKILL] * 2
    finally:
        for process in driver:
            process.kill()
            process.communicate()


def test_a_driver_that_has_gone_already_is_no_error(control: Control) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(20)
    control.write_pids(gone.pid)
    assert struck(control, StrikeKind.KILL_DRIVER).stdout == b"went on\n"
    assert os.getpid() != gone.pid
