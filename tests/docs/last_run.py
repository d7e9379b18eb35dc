"""Write a run of the simulator into docs/reliability.md: `python -m tests.docs.last_run FILE`.

FILE is what `make -s sim SEEDS=20000 ARGS=--json` has printed. Run it on the commit that was
simulated.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.support.pages import DOCS, ROOT

__all__ = ("BEGIN", "END", "section")

BEGIN: Final = "<!-- last run: tests/docs/last_run.py writes what follows -->\n"
END: Final = "<!-- end of the last run -->\n"


def section(found: dict[str, Any], where: str) -> str:
    """Return the run as Markdown.

    Args:
        found: The report of a campaign.
        where: The machine, the day and the commit.
    """
    moments = found["moments"].values()
    last = found["first"] + found["seeds"] - 1
    rows = {
        "seeds": f"{found['seeds']:,} ({found['first']:,} to {last:,}), in "
        f"{found['seconds'] / 60:,.1f} minutes",
        "virtual time": f"{found['virtual_hours']:,.0f} hours",
        "records checked, by position and bytes": f"{found['records']:,}, "
        f"{found['replayed']:,} of them again after a restart",
        "faults that struck": f"{sum(found['faults'].values()):,}, "
        f"of {sum(map(bool, found['faults'].values()))} kinds",
        "restarts": f"{found['restarts']:,}",
        "calls of the service": f"{sum(found['calls'].values()):,}",
        **{kind: f"{count:,}" for kind, count in found["failures"].items()},
        "coincidences met": f"{sum(map(bool, moments))} of {len(moments)}, "
        f"the rarest {min(moments):,} times",
        "recovery when the faults were over": f"99 of 100 seeds within "
        f"{found['recovery_seconds_p99']:,} s, the slowest within "
        f"{found['recovery_seconds_max']:,} s",
        "slowest close": f"{found['slowest_close']:.1f} s",
    }
    lines = [f"| {name} | {figure} |" for name, figure in rows.items()]
    return "\n".join([f"{where}:", "", "| figure | |", "|---|---|", *lines, ""])


def main(path: str) -> None:
    """Replace the run that the page has."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the git of the user
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    today = datetime.now(UTC).strftime("%d %B %Y").lstrip("0")
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, {today}, commit {commit}"
    run = section(json.loads(Path(path).read_text()), where)
    page = DOCS / "reliability.md"
    pattern = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    text, count = re.subn(
        pattern, lambda _: f"{BEGIN}\n{run}\n{END}", page.read_text(), flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"docs/reliability.md has no place for a run: {BEGIN}")
    page.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
