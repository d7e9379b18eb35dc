from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.provers.planted.hunt import SEEDS, SHOWN, BugFound, find, hunt, hunters
from tests.provers.planted.kafka_bugs import KAFKA_BUGS
from tests.provers.planted.kinesis_bugs import HARMLESS, KINESIS_BUGS
from tests.provers.planted.lander_bugs import LANDER_BUGS
from tests.provers.planted.landing_bugs import LANDING_BUGS
from tests.provers.planted.shuffle_bugs import SHUFFLE_BUGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

# As many as it takes to show six of seven planted bugs of the same source.
_HARMLESS_SEEDS = 100


@pytest.fixture(scope="module")
def hunts(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[BugFound | None]]]:
    """Hunt everything that is asked about, in one process: what is planted must not stay here."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    with hunters(1) as pool:
        yield {
            name: pool.submit(hunt, name, _HARMLESS_SEEDS)
            if name in HARMLESS
            else pool.submit(find, name)
            for name in asked
        }


@pytest.mark.parametrize(
    "name", [*KINESIS_BUGS, *KAFKA_BUGS, *SHUFFLE_BUGS, *LANDER_BUGS, *LANDING_BUGS]
)
def test_a_planted_bug_is_found(name: str, hunts: Mapping[str, Future[BugFound | None]]) -> None:
    found = hunts[name].result()

    assert found is not None, f"{SEEDS} seeds do not show that {name}"
    assert found.seed == SHOWN.get(name), (
        f"the seed that is written down does not show any more that {name}, but another one does; "
        f"write that down: python -m tests.provers.planted.hunt '{name}'"
    )


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_is_no_bug(
    name: str, hunts: Mapping[str, Future[BugFound | None]]
) -> None:
    assert hunts[name].result() is None
