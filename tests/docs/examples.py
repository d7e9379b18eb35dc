"""The tests that run the examples of all pages, and the list of them: `make docs`."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ("RUN_BY",)

# The tests take all Python blocks of a page, so that they fail where there is a new one.
RUN_BY: Final = {
    "README.md": ("docs/test_examples.py", "spark/test_pages.py"),
    "asyncio.md": ("docs/test_examples.py",),
    "commands.md": ("cli/test_servers.py",),
    "decoding.md": ("docs/test_examples.py",),
    "foreach-batch.md": ("spark/test_pages.py",),
    "from-kcl.md": ("docs/test_migration.py",),
    "from-spark-kafka.md": ("docs/test_migration.py",),
    "from-spark-sql-kinesis.md": ("docs/test_migration.py",),
    "index.md": ("docs/test_examples.py",),
    "kafka-writer.md": ("kafka/writer/test_page.py",),
    "kafka.md": ("kafka/test_pages.py", "spark/test_pages.py"),
    "kinesis.md": ("docs/test_examples.py",),
    "kinesis-members.md": ("kinesis/leases/test_page.py",),
    "kinesis-queues.md": ("kinesis/test_queue_page.py",),
    "kinesis-writer.md": ("kinesis/writer/test_page.py",),
    "landing.md": ("landing/test_page.py", "spark/test_landed_files.py"),
    "members.md": ("kafka/group/test_page.py",),
    "msk.md": ("kafka/test_pages.py",),
    "observability.md": ("metrics/test_page.py", "spark/test_metrics.py"),
    "operations.md": ("docs/test_examples.py", "spark/test_pages.py"),
    "scaling.md": ("spark/test_landers.py",),
    "security.md": ("docs/test_examples.py",),
    "share-groups.md": ("kafka/share/test_page.py",),
    "shuffle.md": ("kafka/shuffle/test_page.py", "spark/test_key_by.py"),
    "spark.md": ("spark/dataframe/test_page.py", "spark/dataframe/test_source_options.py"),
    "tables.md": ("landing/projections/test_page.py",),
    "testing.md": ("docs/test_examples.py",),
    "typed-records.md": ("decoding/test_page.py",),
    "tutorial.md": ("docs/test_tutorial.py", "spark/test_pages.py"),
    "writing-to-delta.md": ("spark/sinks/tables/test_pages.py",),
    "writing-to-iceberg.md": ("spark/sinks/tables/test_pages.py",),
    "writing-to-jdbc.md": ("spark/sinks/tables/test_pages.py",),
    "writing-to-kafka.md": ("spark/sinks/kafka/test_page.py",),
    "writing-to-kinesis.md": ("spark/sinks/kinesis/test_page.py",),
    "writing-to-parquet.md": ("spark/sinks/tables/test_pages.py",),
    "writing-to-postgres.md": ("spark/sinks/tables/test_pages.py",),
}

if __name__ == "__main__":
    modules = {f"tests/{module}" for several in RUN_BY.values() for module in several}
    elsewhere = sorted(module for module in modules if not module.startswith("tests/docs/"))
    sys.stdout.write(" ".join(elsewhere) + "\n")
