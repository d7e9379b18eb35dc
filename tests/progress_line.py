"""Say what runs and how much is done, in place of a dot for each test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    import pytest

# Where the output is no terminal, a line each time that so many more percent are done.
_STEP: Final = 5


@final
class ProgressLine:
    """One line that is written over on a terminal, and a line for every 5 % elsewhere."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._total = self._done = self._told = 0
        self._began = time.monotonic()

    def pytest_report_teststatus(self, report: object) -> tuple[str, str, str] | None:
        """Write no dot for a test that has passed."""
        if getattr(report, "passed", False) and getattr(report, "when", "") == "call":
            return "passed", "", "PASSED"
        return None

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Take the number of tests; each process collects them all."""
        self._total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Show the file of the test that begins."""
        percent = 100 * self._done // max(self._total, 1)
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        line = f"{percent:3} % in {minutes}:{seconds:02}: {nodeid.partition('::')[0]}"
        if self._reporter.isatty:
            self._reporter.rewrite(line, erase=True)
        elif percent >= self._told + _STEP:
            self._told = percent
            self._reporter.ensure_newline()
            self._reporter.write_line(line)

    def pytest_runtest_logfinish(self) -> None:
        """Count a test that has ended."""
        self._done += 1
