"""pyspark 3.5 has no data sources in Python."""

from __future__ import annotations

import subprocess
import sys

import pyspark


def test_the_format_names_what_to_use_instead() -> None:
    hide = "import sys; sys.modules['pyspark.sql.datasource'] = None; import pyspark_fanout"
    code = "import pyspark_fanout" if pyspark.__version__.startswith("3.") else hide
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        'fanout.errors.SetupError: format("fanout") needs pyspark 4.0 or newer; use '
        "fanout.spark.foreach_batch, which needs 3.5"
    )
