"""Build a release and try it as its users will: `make release`.

The wheel, the source archive and a list of the dependencies (an SBOM in CycloneDX's form) are in
dist/ then. Nothing is published.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.packaging.changelog import ChangelogError, check_changelog
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

DIST: Final = ROOT / "dist"
SMOKE: Final = Path(__file__).with_name("smoke.py")
# What the smoke test uses; `testing` brings Kinesis and Kafka.
EXTRAS: Final = "cli,testing"


class ReleaseError(Exception):
    """Something has to change before this can be released."""


def main(interpreters: Sequence[str]) -> int:
    try:
        release(interpreters)
    except (ChangelogError, ReleaseError) as error:
        sys.stderr.write(f"make release: {error}\n")
        return 1
    return 0


def release(interpreters: Sequence[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    check_changelog((ROOT / "CHANGELOG.md").read_text(), version)
    check_tree()
    check_tags(run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split(), version)
    for interpreter in interpreters:
        check_interpreter(interpreter)
    # The archives and the list then depend on the commit alone, not on when they are made.
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    wheel, archive = build()
    for interpreter in interpreters:
        for artifact in (wheel, archive):
            say(f"{artifact.name} on {interpreter}")
            try_in_empty_environment(artifact, version, interpreter)
    say("the list of dependencies")
    write_sbom(wheel, interpreters[-1])
    say(f"dist/ has fanout {version}, checked and tested")


def check_tree() -> None:
    if changed := run("git", "status", "--porcelain", cwd=ROOT):
        raise ReleaseError(f"commit these changes, or take them back, first:\n{changed}")


def check_tags(tags: Sequence[str], version: str) -> None:
    """Check that the tag of a release, if the commit has one, is that of the version."""
    for tag in tags:
        if tag.startswith("v") and tag != f"v{version}":
            raise ReleaseError(
                f"the commit has the tag {tag}, and pyproject.toml version {version}"
            )


def check_interpreter(interpreter: str) -> None:
    try:
        run(interpreter, "-c", "")
    except (OSError, ReleaseError) as error:
        raise ReleaseError(
            f"{interpreter} does not run here: install it, or name the ones that do, "
            "as in `make release PYTHONS='python3.11 /opt/python3.12/bin/python'`"
        ) from error


def build() -> tuple[Path, Path]:
    """Build the source archive and, from it, the wheel; return the wheel and the archive."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT, pinned=True)
    (wheel,), (archive,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, archive)
    run(
        sys.executable,
        "-m",
        "check_wheel_contents",
        "--toplevel",
        "fanout,pyspark_fanout.py",
        wheel,
    )
    return wheel, archive


def try_in_empty_environment(artifact: Path, version: str, interpreter: str) -> None:
    """Install an artifact with the dependencies that users get today, and read with it."""
    with tempfile.TemporaryDirectory() as home:
        python = install(f"{artifact}[{EXTRAS}]", home, interpreter)
        run(python, "-I", SMOKE, version, cwd=home)


def write_sbom(wheel: Path, interpreter: str) -> None:
    """List what the wheel brings with all extras, in the versions of constraints.txt."""
    with tempfile.TemporaryDirectory() as home:
        python = install(f"{wheel}[all]", home, interpreter, pinned=True)
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", python),
            *("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"),
            *("--output-reproducible", "--output-file", wheel.with_suffix(".cdx.json")),
        )


def install(what: str, home: str, interpreter: str, *, pinned: bool = False) -> Path:
    """Install into a new environment that has nothing else, and return its Python."""
    run(interpreter, "-m", "venv", "--without-pip", home)
    python = Path(home, "bin", "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", what, pinned=pinned)
    return python


def run(*command: str | Path, cwd: str | Path = "/", pinned: bool = False) -> str:
    """Run a command and return what it printed.

    Args:
        command: the program and its arguments.
        cwd: where it runs.
        pinned: let pip, also within other tools, take the versions of constraints.txt.

    Raises:
        ReleaseError: It failed; the error has its output.
    """
    done = subprocess.run(  # noqa: S603 - our own commands
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | ({"PIP_CONSTRAINT": str(ROOT / "constraints.txt")} if pinned else {}),
    )
    if done.returncode:
        raise ReleaseError(f"`{' '.join(map(str, command))}` failed:\n{done.stdout}")
    return done.stdout


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
