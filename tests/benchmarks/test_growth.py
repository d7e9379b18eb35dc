from __future__ import annotations

import json
from random import Random

import pytest

from benchmarks import soak
from benchmarks.growth import BLOCKS, growth
from benchmarks.soak import LIMITS, WARM_UP, evaluate

SECONDS = [10.0 * number for number in range(180)]


def noise(seed: int, level: float = 300.0, size: float = 10.0) -> list[float]:
    random = Random(seed)
    return [level + random.uniform(-size, size) for _ in SECONDS]


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_flat(seed: int) -> None:
    assert growth(SECONDS, noise(seed)).flat


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_grows_under_noise(seed: int) -> None:
    leaking = [figure + 0.02 * at for figure, at in zip(noise(seed), SECONDS, strict=True)]
    grown = growth(SECONDS, leaking)
    assert not grown.flat
    assert grown.per_hour == pytest.approx(72, rel=0.5)


def test_what_never_changes_is_flat() -> None:
    assert growth(SECONDS, [7.0] * len(SECONDS)).flat
    assert growth(SECONDS, [0.0] * len(SECONDS)).flat


def test_one_file_more_a_minute_grows() -> None:
    assert not growth(SECONDS, [40.0 + at // 60 for at in SECONDS]).flat


def test_a_saw_is_flat() -> None:
    """Such as the files of a checkpoint, of which old ones are deleted from time to time."""
    assert growth(SECONDS, [100.0 + at % 300 for at in SECONDS]).flat


def test_what_shrinks_is_flat() -> None:
    assert growth(SECONDS, [10_000 - at for at in SECONDS]).flat


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{BLOCKS - 1} samples are too few"):
        growth(SECONDS[: BLOCKS - 1], [1.0] * (BLOCKS - 1))


def test_the_warm_up_counts_for_nothing() -> None:
    end = SECONDS[-1] * WARM_UP
    samples = [
        {"seconds": at, "memory": min(at, end), "leak": 100 + at, "kinesis": at, "kafka": at}
        for at in SECONDS
    ]
    grown = evaluate(samples)
    assert {name: each.flat for name, each in grown.items()} == {"memory": True, "leak": False}


MIB = 2.0**20


def made_up(name: str, level: float, per_hour: float, seed: int) -> bool:
    """Return whether a figure with noise of 0.5 % counts as flat."""
    noisy = noise(seed, level, level / 200)
    figures = [figure + per_hour * at / 3600 for figure, at in zip(noisy, SECONDS, strict=True)]
    samples = [{"seconds": at, name: one} for at, one in zip(SECONDS, figures, strict=True)]
    return evaluate(samples)[name].flat


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("name", "level", "per_hour"),
    [
        ("JVM RSS", 1500 * MIB, 80 * MIB),
        ("driver RSS", 300 * MIB, 40 * MIB),
        ("JVM heap", 100 * MIB, 12 * MIB),
        ("checkpoint bytes", 10 * MIB, 4 * MIB),
        ("driver threads", 60.0, 8.0),
    ],
)
def test_a_leak_that_is_a_small_part_of_a_figure_grows(
    name: str, level: float, per_hour: float, seed: int
) -> None:
    assert not made_up(name, level, per_hour, seed)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", LIMITS)
def test_what_stays_within_its_limit_is_flat(name: str, seed: int) -> None:
    assert made_up(name, 10.0 * LIMITS[name], LIMITS[name] / 4, seed)


def test_json_is_all_that_a_program_gets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [{"seconds": at, "leak": 100 + at, "kinesis": at, "kafka": at} for at in SECONDS]
    monkeypatch.setattr(soak, "soak", lambda *_, **__: samples)
    assert soak.main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["flat"], report["records"]) == (False, 2 * SECONDS[-1])
