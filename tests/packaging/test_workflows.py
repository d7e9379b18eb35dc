"""The workflows of a public host run our own commands, with no more rights than they need."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS: Final = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WRITES: Final = {
    # PyPI accepts the identity of the workflow instead of a password.
    ("release.yml", "publish"): {"id-token": "write"},
    ("release.yml", "announce"): {"contents": "write"},
    # GitHub Pages accepts the identity of the workflow, too.
    ("site.yml", "publish"): {"pages": "write", "id-token": "write"},
}
every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def commands(job: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the words of each command of a job, once for each target of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    targets = matrix.get("target", []) + [each["target"] for each in matrix.get("include", [])]
    for step in job["steps"]:
        if "run" in step:
            for target in targets or [""]:
                yield shlex.split(step["run"].replace("${{ matrix.target }}", target))


@every_workflow
def test_a_command_is_a_target_that_exists(path: Path) -> None:
    found = [words for job in jobs(path).values() for words in commands(job)]
    made = {words[1] for words in found if words[0] == "make"}
    assert made
    assert made - TARGETS == set()
    assert {words[0] for words in found} <= {"make", "gh"}


def test_both_lists_are_of_the_pythons_that_a_release_is_tried_on() -> None:
    (line,) = re.findall(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    pythons = sorted(name.removeprefix("python") for name in line.split())
    released = next(path for path in WORKFLOWS if path.name == "release.yml").read_text()
    assert sorted(re.findall(r"^ +(3\.\d+)$", released, re.MULTILINE)) == pythons
    ci = next(path for path in WORKFLOWS if path.name == "ci.yml")
    assert jobs(ci)["test"]["strategy"]["matrix"]["python"] == pythons


@every_workflow
def test_actions_are_pinned_by_commit_and_name_their_release(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", each)] == []


@every_workflow
def test_a_job_has_no_more_rights_than_it_needs(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] in ({}, {"contents": "read"})
    for name, job in jobs(path).items():
        allowed = WRITES.get((path.name, name), {"contents": "read"})
        assert job.get("permissions", {"contents": "read"}) == allowed, name
        assert job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


@every_workflow
def test_no_secret_is_named(path: Path) -> None:
    assert "secrets." not in path.read_text()


def test_maven_and_pip_are_cached_where_tests_run() -> None:
    ci = next(path for path in WORKFLOWS if path.name == "ci.yml")
    for name in ("test", "docs", "prove"):
        text = str(jobs(ci)[name])
        assert "~/.cache/fanout" in text
        assert "'cache': 'pip'" in text
