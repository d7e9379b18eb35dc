"""What this version of Spark tells the planner of a query."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import pytest

# Whether it tells of limits and of Trigger.AvailableNow: pyspark 4.2 and newer.
TELLS_TRIGGER: Final = find_spec("pyspark.sql.streaming.datasource") is not None
needs_trigger: Final = pytest.mark.skipif(
    not TELLS_TRIGGER, reason="before pyspark 4.2 Trigger.AvailableNow is as Trigger.Once"
)
