from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout._child_process import run_command
from fanout.testing import jars
from tests.support.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_exit_code_and_both_outputs_are_returned() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_command([sys.executable, "-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_command_runs_in_its_directory(tmp_path: Path) -> None:
    done = run_command([sys.executable, "-c", "import os; print(os.getcwd())"], cwd=tmp_path)
    assert Path(done.stdout.strip()).samefile(tmp_path)


@pytest.fixture
def endless(tmp_path: Path) -> tuple[list[str], Path]:
    """A command that writes its process id to a pipe and runs until it is killed."""
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    return [sys.executable, "-c", code, str(pipe)], pipe


def run_java(command: list[str]) -> None:
    jars.run(command, Path.cwd(), "it failed")


@pytest.mark.parametrize("run", [run_command, run_java])
def test_ctrl_c_leaves_no_child(
    endless: tuple[list[str], Path], run: Callable[[list[str]], object]
) -> None:
    command, pipe = endless
    started: list[int] = []
    main = threading.get_ident()

    def interrupt() -> None:
        started.append(int(pipe.read_text()))
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt) as interrupted:
            run(command)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    # A process that was waited for is no longer a child.
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
    del interrupted  # it kept the frames, whose end would have waited too


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_child_that_has_just_begun(
    endless: tuple[list[str], Path], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, pipe = endless
    started: list[int] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(int(pipe.read_text()))
            signal.raise_signal(number)  # nobody knows the child before this returns

    monkeypatch.setattr("subprocess.Popen", Interrupted)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as interrupted:
            run_command(command)
    finally:
        signal.signal(number, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
    del interrupted


def test_a_signal_before_the_child_begins_leaves_none(
    endless: tuple[list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, pipe = endless
    started: list[subprocess.Popen[str]] = []
    interrupted = threading.Event()
    start = threading.Thread.start

    class Late(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            assert interrupted.wait(PATIENCE)
            super().__init__(*args, **options)
            started.append(self)
            pipe.read_text()

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        interrupted.set()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("subprocess.Popen", Late)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                run_command(command)
    finally:
        signal.signal(signal.SIGINT, before)
    eventually(lambda: started)
    with started[0] as process:
        try:
            assert process.wait(PATIENCE) == -signal.SIGKILL
        finally:
            process.kill()


def test_a_command_that_takes_too_long_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr("subprocess.Popen", Recorded)
    with pytest.raises(subprocess.TimeoutExpired):
        run_command([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.01)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
