from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from fanout.errors import SetupError
from tests.jars import fetch

if TYPE_CHECKING:
    from pathlib import Path

# Stands for Java, so that no test depends on the network: as Ivy it makes the jar of the set, and
# notes that it was called.
JAVA = """\
#!/bin/sh
home=$(dirname "$0")/..
case "$*" in
  -version) echo 'openjdk version "17.0.1"' >&2 ;;
  *ivy.Main*)
    echo ivy >> "$home/calls"; mkdir libs
    case "$(cat ivy.xml)" in *' m:classifier="exec"'*) exec=-exec ;; esac
    cp "$home/jar" "libs/driver-1.0$exec.jar" ;;
esac
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set `drivers` of one jar with the bytes `content`, and a stand-in for Java."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(JAVA)
    (home / "bin" / "java").chmod(0o755)
    (home / "jar").write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    (tmp_path / "drivers.txt").write_text(f"org.example:driver:1.0 {digest}\n")
    monkeypatch.setattr(fetch, "_LISTS", tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return home


def test_a_set_is_downloaded_once(java: Path) -> None:
    (jar,) = fetch.jar_set("drivers")
    assert jar.read_bytes() == b"content"
    assert fetch.spark_jars("drivers") == str(jar)
    assert (java / "calls").read_text() == "ivy\n"


@pytest.mark.usefixtures("java")
def test_a_jar_can_have_a_classifier(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"content").hexdigest()
    (tmp_path / "drivers.txt").write_text(f"org.example:driver:1.0:exec {digest}\n")
    (jar,) = fetch.jar_set("drivers")
    assert jar.name == "driver-1.0-exec.jar"


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("line", ["org.example:driver 0", "a:b:c:d:e " + "0" * 64])
def test_a_line_that_names_no_jar_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "drivers.txt").write_text(line)
    with pytest.raises(SetupError, match=r"is not of the form 'GROUP:NAME:VERSION\[:CLASSIFIER\]"):
        fetch.jar_set("drivers")


def test_a_jar_with_another_checksum_is_not_kept(java: Path) -> None:
    (java / "jar").write_bytes(b"another content")
    with pytest.raises(SetupError, match=r"driver-1.0.jar is not the pinned one"):
        fetch.jar_set("drivers")
    (java / "jar").write_bytes(b"content")
    (jar,) = fetch.jar_set("drivers")
    assert jar.read_bytes() == b"content"


def test_a_changed_list_is_another_set(java: Path, tmp_path: Path) -> None:
    (before,) = fetch.jar_set("drivers")
    (java / "jar").write_bytes(b"later")
    digest = hashlib.sha256(b"later").hexdigest()
    (tmp_path / "drivers.txt").write_text(f"org.example:driver:1.0 {digest}\n")
    (after,) = fetch.jar_set("drivers")
    assert (before.read_bytes(), after.read_bytes()) == (b"content", b"later")


@pytest.mark.usefixtures("java")
def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SetupError, match="no set of jars 'nope'; there are drivers"):
        fetch.jar_set("nope")
