"""Resolve a set of jars with all that it needs, and print its pinned list; see `fetch`.

    python -m tests.jars.pin GROUP:NAME:VERSION ... [-GROUP:NAME ...] [--alone]

Jars that are named with a dash are left out, and so are jars that this environment's pyspark has:
with `--alone`, for a program that runs without Spark, they are kept.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path

from fanout.testing.jars import IVY_MODULE, pyspark_jars, retrieve


def main(arguments: list[str]) -> None:
    alone = "--alone" in arguments
    arguments = [one for one in arguments if one != "--alone"]
    wanted = [one.split(":") for one in arguments if not one.startswith("-")]
    unwanted = [one[1:].split(":") for one in arguments if one.startswith("-")]
    lines = [f'<dependency org="{g}" name="{n}" rev="{v}" conf="default"/>' for g, n, v in wanted]
    lines += [f'<exclude org="{group}" module="{name}"/>' for group, name in unwanted]
    present = {re.split(r"-\d", jar.name)[0] for jar in pyspark_jars().iterdir()}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        module = IVY_MODULE.format("\n".join(lines))
        pattern = "libs/[organisation]:[artifact]:[revision]"
        retrieve(module, work, pattern, "the jars are not to be had")
        for jar in sorted((work / "libs").iterdir()):
            if alone or jar.name.split(":")[1] not in present:
                sys.stdout.write(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
