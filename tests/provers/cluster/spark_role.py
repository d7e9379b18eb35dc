"""A query of Spark that copies a topic into a KafkaSink: `python -m ... SERVERS DIRECTORY`.

It prints a line for each batch that is written, and ends when its input does.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from fanout.errors import FanOutError
from fanout.kafka import KafkaSource
from fanout.spark import KafkaSink, foreach_batch
from fanout.testing.spark.session import short_lived_session
from tests.provers.cluster.roles import cluster_of


def _say(line: str) -> None:
    sys.stdout.write(line.replace("\n", " ") + "\n")
    sys.stdout.flush()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main(servers: str, directory: Path) -> None:
    """Run the query until stdin ends, and begin it again when it fails."""
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=[ended], daemon=True).start()
    source = KafkaSource(cluster=cluster_of(servers), topics="in", start="earliest")
    sink = KafkaSink(
        cluster=cluster_of(servers),
        topic="out-spark",
        transform_arrow=lambda rows: rows.select(["key", "value"]),
    )
    with short_lived_session("cluster", directory) as session:
        while not ended.is_set():
            try:
                query = foreach_batch(
                    session, source, sink, checkpoint_location=str(directory / "checkpoint")
                )
                query.on_batch(lambda _: _say("batch"))
                while query.exception() is None and not ended.is_set():
                    time.sleep(0.2)
                failure = query.exception()
                query.stop()
                if failure is not None:
                    _say(f"failed {failure}")
            except FanOutError as error:
                _say(f"failed {error}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
