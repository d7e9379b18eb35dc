from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.kafka.reading import records
from fanout.kafka.reading.few_records import FEW

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=[0, FEW], ids=["as many", "as few"])
def _decoded_both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode the records of a test by columns, and then one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "FEW", request.param)
        yield
