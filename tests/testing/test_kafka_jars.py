from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from fanout.errors import SetupError
from fanout.testing.kafka.jars import kafka_jars
from tests.support.groups import KAFKA

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = KAFKA

# Stands for Java where a test must not depend on the network: it notes that it was called as Ivy
# or as Kafka's formatter, and makes the files that they make. Its directory has `calls` and may
# have `offline` or `hang`.
JAVA = """\
#!/bin/sh
home=$(dirname "$0")/..
case "$*" in
  -version) echo 'openjdk version "17.0.1"' >&2 ;;
  *ivy.Main*)
    echo ivy >> "$home/calls"
    if [ -e "$home/offline" ]; then echo ":: UNRESOLVED DEPENDENCIES ::"; exit 1; fi
    mkdir -p kafka/libs && touch kafka/libs/kafka.jar
    if [ -e "$home/hang" ]; then echo > "$home/hangs"; sleep 1000; fi ;;
  *StorageTool*) mkdir data && touch data/bootstrap.checkpoint ;;
esac
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(JAVA)
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Only a broker that runs has classes to archive.
    monkeypatch.setattr(
        "fanout.testing.kafka.jars._archive_classes",
        lambda _, home: (home / "libs" / "classes.jsa").touch(),
    )
    return home


def calls(java: Path) -> int:
    return len((java / "calls").read_text().splitlines())


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "fanout" / "kafka").iterdir())


def test_a_version_is_resolved_once(java: Path, tmp_path: Path) -> None:
    home = kafka_jars("4.3.1")
    assert home == tmp_path / "cache" / "fanout" / "kafka" / "4.3.1"
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()) == [
        "bootstrap.checkpoint",
        "libs/classes.jsa",
        "libs/kafka.jar",
    ]
    assert kafka_jars("4.3.1") == home
    assert calls(java) == 1
    assert cached(tmp_path) == ["4.3.1", "4.3.1.lock"]


def test_two_who_want_a_version_at_once_resolve_it_once(java: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(kafka_jars, ["4.3.1"] * 2)
    assert first == second
    assert calls(java) == 1


def test_each_version_has_its_own_jars(java: Path) -> None:
    assert kafka_jars("4.3.1") != kafka_jars("4.2.0")
    assert calls(java) == 2


def test_what_cannot_be_had_is_an_error_that_says_what_to_check(java: Path, tmp_path: Path) -> None:
    (java / "offline").touch()
    with pytest.raises(SetupError) as caught:
        kafka_jars("9.9.9")
    assert "Kafka 9.9.9 is not to be had: check version and network" in str(caught.value)
    assert "UNRESOLVED DEPENDENCIES" in str(caught.value)
    assert cached(tmp_path) == ["9.9.9.lock"]


def test_a_killed_resolution_is_done_again(java: Path, tmp_path: Path) -> None:
    (java / "hang").touch()
    os.mkfifo(java / "hangs")
    code = "from fanout.testing.kafka.jars import kafka_jars; kafka_jars('4.3.1')"
    caller = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)  # noqa: S603 - ours
    with caller:
        (java / "hangs").read_text()  # waits until Ivy has made half of what is wanted
        os.killpg(caller.pid, signal.SIGKILL)
    assert len(cached(tmp_path)) == 2
    (java / "hang").unlink()
    assert (kafka_jars("4.3.1") / "libs" / "kafka.jar").is_file()
    assert cached(tmp_path) == ["4.3.1", "4.3.1.lock"]


def test_people_see_that_it_takes_a_while(
    java: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert java.is_dir()
    kafka_jars("4.3.1")
    home = tmp_path / "cache" / "fanout" / "kafka" / "4.3.1"
    assert capsys.readouterr().err == f"Downloading Kafka 4.3.1 into {home}, once\n"
    kafka_jars("4.3.1")
    assert capsys.readouterr().err == ""
