"""Spark's Python workers: what each task costs beside its work."""

from __future__ import annotations

import gc
import sys
from functools import cache
from zipimport import zipimporter

import pyspark
from pyspark import TaskContext


def spare_worker() -> None:
    """Make later tasks in this worker cheaper to start and to end; a task calls it as it begins.

    It does nothing outside a task, as a driver's process is the user's.
    """
    if TaskContext.get() is None:
        return
    _spare_modules()
    _spare_archive()


@cache
def _spare_modules() -> None:
    """Exclude the loaded modules of a worker from its garbage collections.

    There is one after each task, and it goes through all of Arrow, pandas and Kafka's protocol:
    about 100,000 objects that stay.
    """
    gc.collect()
    gc.freeze()


def _spare_archive() -> None:
    """Drop the cached importers of Spark's archive; an import from it makes a new one.

    Before each task Spark 3.5 and 4.0 invalidate the caches of all importers, because the user may
    have added files. Python then reads the directory of pyspark.zip, which does not change, once
    for each package in it that was imported from: a thousand names, a dozen times.
    """
    ours = pyspark.__spec__.loader
    if not isinstance(ours, zipimporter):
        return
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimporter) and importer.archive == ours.archive:
            del sys.path_importer_cache[path]
