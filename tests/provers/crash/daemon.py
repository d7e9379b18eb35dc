"""The daemon of the job's Python workers: Spark's own, whose workers come to moments as well.

Spark runs it by the setting `spark.python.daemon.module`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.daemon import manager

from tests.provers.crash.control import CONTROL, Control
from tests.provers.crash.hooks import install_in_worker

if __name__ == "__main__":
    # Before the fork: what is imported here, no worker has to import again.
    install_in_worker(Control(Path(os.environ[CONTROL])))
    manager()
