"""What Spark's Python workers need not do before and after each task.

A worker is used for one task after the other, and lives as long as there are tasks.
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from zipimport import zipimporter

import pyspark

__all__ = ("spare_worker",)


def spare_worker() -> None:
    """Make the tasks after this one in its worker cheaper to begin and to end."""
    _spare_modules()
    _spare_archive()


@cache
def _spare_modules() -> None:
    """Leave what a worker has loaded out of its garbage collections.

    There is one after each task, and it goes through all of Arrow, pandas and Kafka's protocol:
    about 100,000 objects that stay.
    """
    gc.collect()
    gc.freeze()


def _spare_archive() -> None:
    """Forget who imports from Spark's archive; who imports from it again is found again.

    Before each task Spark 3.5 and 4.0 tell all importers to look again what there is, because the
    user may have added files. Python then reads the directory of pyspark.zip, which does not
    change, once for each of the packages in it that were imported from: a thousand names, a dozen
    times.
    """
    ours = pyspark.__spec__.loader
    if not isinstance(ours, zipimporter):
        return
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimporter) and importer.archive == ours.archive:
            del sys.path_importer_cache[path]
