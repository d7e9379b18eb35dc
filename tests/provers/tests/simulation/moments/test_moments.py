from __future__ import annotations

import pytest

from tests.provers.simulation.moments.moments import (
    KinesisSometimes,
    NeverMetError,
    check_met,
    missing,
)


def test_a_coincidence_that_is_never_met_fails_a_campaign_by_its_name_and_sentence() -> None:
    met: dict[str, int] = dict.fromkeys(KinesisSometimes, 1)
    del met[KinesisSometimes.PILL_BEHIND_EVENT]
    met[KinesisSometimes.END_WAITED] = 0

    with pytest.raises(NeverMetError) as failure:
        check_met(met)

    assert str(failure.value) == (
        "these coincidences were never met:\n"
        "  PILL_BEHIND_EVENT: a pill arrives while the slot still holds an event\n"
        "  END_WAITED: the end of a shard waits half a minute for a slow job"
    )
    assert missing(met) == (KinesisSometimes.PILL_BEHIND_EVENT, KinesisSometimes.END_WAITED)


def test_a_campaign_that_has_met_every_coincidence_misses_none() -> None:
    met: dict[str, int] = dict.fromkeys(KinesisSometimes, 1)

    check_met(met)

    assert missing(met) == ()


def test_nothing_is_met_twice_under_one_sentence() -> None:
    assert len(KinesisSometimes.__members__) == len(set(KinesisSometimes)) > 40
