from __future__ import annotations

import sys

import pytest

from tests.packaging.release import ReleaseError, check_interpreter, check_tags, main, run


def test_a_missing_interpreter_is_named_with_what_to_do() -> None:
    check_interpreter(sys.executable)
    for missing in ("python9.99", "false"):
        with pytest.raises(
            ReleaseError, match=f"{missing} does not run here.*make release PYTHONS="
        ):
            check_interpreter(missing)


def test_the_tag_of_the_commit_is_that_of_the_version() -> None:
    check_tags([], "0.2.0")
    check_tags(["v0.2.0", "reviewed"], "0.2.0")
    with pytest.raises(ReleaseError, match=r"tag v0\.3\.0, and .* version 0\.2\.0"):
        check_tags(["v0.3.0"], "0.2.0")


def test_a_command_that_fails_shows_its_output() -> None:
    assert run(sys.executable, "-c", "print('fine')") == "fine\n"
    with pytest.raises(ReleaseError, match="failed:\nno room"):
        run(sys.executable, "-c", "import sys; sys.exit('no room')")


def test_what_has_to_change_is_said_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["python9.99"]) == 1
    assert capsys.readouterr().err.startswith("make release: ")
