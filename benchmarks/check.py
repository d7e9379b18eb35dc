"""Compare the cost of pinned work with what is stored: `python -m benchmarks check`.

Where valgrind is installed it counts instructions, which are the same on a busy machine and on an
idle one, a slow one and a fast one. Elsewhere processor time is counted in units of a fixed piece
of work that takes turns with the pinned one, which tells only of large changes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness import describe_machine
from benchmarks.pinned import PINNED, yardstick
from benchmarks.turns import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = (
    "INSTRUCTIONS",
    "YARDSTICKS",
    "Measure",
    "compared",
    "instructions",
    "main",
    "yardsticks",
)

STORED: Final = Path(__file__).with_name("pinned.json")
_ROUNDS: Final = 40


@dataclass(frozen=True, slots=True)
class Measure:
    """What a cost is counted in.

    Args:
        name: Its name in the stored figures.
        unit: What a figure in the table means.
        bound: A cost that is larger by this part of the stored one is a regression.
    """

    name: str
    unit: str
    bound: float


INSTRUCTIONS: Final = Measure("instructions", "instructions of a record", 0.1)
# In ten runs on two cores, with a load of 10 to 15, figures of one tree were up to 20 % apart.
YARDSTICKS: Final = Measure("yardsticks", "yardsticks of a million records", 0.3)


def instructions(
    names: Sequence[str], program: Sequence[str] = ("-m", "benchmarks.pinned")
) -> dict[str, float]:
    """Count the instructions of a record under valgrind, which runs 5 to 50 times slower.

    Args:
        names: The pinned work to measure.
        program: What Python runs; it gets the names as arguments.

    Raises:
        ChildProcessError: If something was not counted.
    """
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(  # noqa: S603 - our own module
            [
                shutil.which("valgrind") or "valgrind",
                "--quiet",
                "--tool=callgrind",
                "--instr-atstart=no",
                f"--callgrind-out-file={directory}/counted",
                f"--log-file={directory}/log",
                sys.executable,
                *program,
                *names,
            ],
            # The order of a set, and threads that wait, would change the count.
            env=os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            cwd=STORED.parents[1],
            check=True,
        )
        texts = [path.read_text() for path in Path(directory).glob("counted.*")]
    found = {}
    for text in texts:
        told = re.search(r"^desc: Trigger: dump pinned (\d+) (\d+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
        assert told is not None
        assert total is not None
        found[names[int(told[1])]] = int(total[1]) / int(told[2])
    if missing := [name for name in names if not found.get(name)]:
        raise ChildProcessError(f"valgrind has counted nothing of {', '.join(missing)}")
    return found


def yardsticks(names: Sequence[str], rounds: int = _ROUNDS) -> dict[str, float]:
    """Measure the processor time of a million records in runs of the yardstick, in turn with it.

    Args:
        names: The pinned work to measure.
        rounds: How often each is run; the least of each counts, as other work only adds to it.
    """
    unit, found = yardstick(), {}
    for name in names:
        work = PINNED[name]()
        records = work()
        gc.collect()
        ours, units = [], []
        for _ in range(rounds):
            units.append(_cpu_seconds(unit))
            ours.append(_cpu_seconds(work))
        found[name] = min(ours) / min(units) / records * 1e6
    return found


def _cpu_seconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def compared(
    measured: Mapping[str, float], stored: Mapping[str, float], bound: float
) -> dict[str, dict[str, Any]]:
    """Return each figure with the stored one, their ratio, and whether it is a regression.

    Raises:
        ValueError: If something is stored that was not measured.
    """
    if missing := [name for name in stored if name not in measured]:
        raise ValueError(f"not measured, but stored: {', '.join(missing)}; store anew by --store")
    return {
        name: {
            "measured": figure,
            "stored": stored.get(name),
            "ratio": figure / stored[name] if name in stored else None,
            "regression": name in stored and figure > stored[name] * (1 + bound),
        }
        for name, figure in measured.items()
    }


def main(arguments: Sequence[str]) -> int:
    """Measure the pinned work, print a table, and compare.

    Returns:
        The exit code: 1 if a cost is a regression, 2 if nothing is stored.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks check", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print an object on the last line")
    parser.add_argument("--store", action="store_true", help="store what is measured")
    parser.add_argument("--stored", type=Path, default=STORED, help="the file of stored figures")
    parser.add_argument(
        "--processor-time", action="store_true", help="do not count instructions with valgrind"
    )
    options = parser.parse_args(arguments)
    counts = shutil.which("valgrind") and shutil.which("callgrind_control")
    measure = INSTRUCTIONS if counts and not options.processor_time else YARDSTICKS
    if not counts:
        tell("valgrind is not installed: processor time is compared, by a bound of 30 %")
    measured = (instructions if measure is INSTRUCTIONS else yardsticks)(list(PINNED))
    if options.store:
        _store(options.stored, measure, measured)
    try:
        stored = json.loads(options.stored.read_text(encoding="utf-8"))[measure.name]
        figures, machine = stored["pinned"], stored["machine"]
    except (OSError, KeyError):
        tell(f"{options.stored} has no {measure.name}: store them with --store")
        return 2
    if changed := _other_versions(machine):
        tell(f"the figures were stored with other versions: {', '.join(changed)}")
    lines = compared(measured, figures, measure.bound)
    Console().print(_table(measure, lines))
    if options.json:
        print(json.dumps({"measure": measure.name, "bound": measure.bound, "pinned": lines}))  # noqa: T201
    return int(any(line["regression"] for line in lines.values()))


def _store(path: Path, measure: Measure, measured: Mapping[str, float]) -> None:
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    pinned = {name: float(f"{figure:.4g}") for name, figure in measured.items()}
    kept[measure.name] = {"machine": describe_machine(), "pinned": pinned}
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _other_versions(then: Mapping[str, Any]) -> list[str]:
    now = describe_machine()
    before = {"python": then["python"], **then["libraries"]}
    here = {"python": now["python"], **now["libraries"]}
    return [
        f"{name} {before.get(name)}, here {here[name]}"
        for name in here
        if here[name] != before.get(name)
    ]


def _table(measure: Measure, lines: Mapping[str, Mapping[str, Any]]) -> Table:
    laid_out = Table(title=f"{measure.unit}, a regression from {1 + measure.bound:g} times on")
    laid_out.add_column("pinned")
    for heading in ("stored", "now", "times"):
        laid_out.add_column(heading, justify="right")
    laid_out.add_column("")
    for name, line in lines.items():
        before = "" if line["stored"] is None else f"{line['stored']:,.0f}"
        times = "new" if line["ratio"] is None else f"{line['ratio']:.3f}"
        verdict = "regression" if line["regression"] else ""
        laid_out.add_row(name, before, f"{line['measured']:,.0f}", times, verdict)
    return laid_out
