"""A driver with its checkpoint on s3a, whose query reads by two landers.

Its arguments are those of `tests.spark.driver_on_s3`; a setting that begins with `storage.` is one
of `OnExecutors(storage_options=...)`. Which landers have connected is in its log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

from fanout.errors import FanOutError
from fanout.spark import OnExecutors, foreach_batch, stop_on_signal
from fanout.testing.s3_clients import s3a_settings
from tests.spark.doomed_driver import from_kinesis
from tests.spark.driver_on_s3 import MAX_RECORDS, checkpoint, into_file, session


def main(kinesis: str, s3: str, name: str, output: str, until: str, *settings: str) -> None:
    given = dict(setting.split("=") for setting in settings)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # Landers find their own credentials, for both services.
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    spark = session(s3a_settings(s3), "local[4]")
    storage_options = {"endpoint": s3, "region": "us-east-1"}
    storage_options |= {
        key.removeprefix("storage."): value
        for key, value in given.items()
        if key.startswith("storage.")
    }
    try:
        with stop_on_signal():
            foreach_batch(
                spark,
                replace(from_kinesis(kinesis, name), session=None),
                into_file(Path(output)),
                checkpoint_location=checkpoint(name),
                max_records=MAX_RECORDS,
                available_now=until == "once",
                landing=OnExecutors(landers=2, storage_options=storage_options),
            ).await_termination()
    except FanOutError as error:
        sys.stdout.write(json.dumps([type(error).__name__, str(error)]) + "\n")


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
