"""The command that the environment names, for `tests.support.doomed` to kill."""

from __future__ import annotations

import json
import os
import sys

from fanout.cli import main

sys.argv = ["fanout", *json.loads(os.environ["FANOUT_TEST_COMMAND"])]
main()
