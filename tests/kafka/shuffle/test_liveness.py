from __future__ import annotations

from fanout.kafka.shuffle.liveness import Liveness


def test_a_producer_is_silent_as_long_as_the_reader_has_waited_since() -> None:
    silence = Liveness(60.0)
    silence.hear(1, 0)
    silence.waited(59.0)
    silence.hear(1, 1)
    assert silence.too_long([0, 1]) == []
    silence.waited(1.0)
    assert silence.too_long([0, 1]) == [0]
    silence.waited(59.0)
    assert silence.too_long([0, 1]) == [0, 1]


def test_one_that_was_never_heard_is_silent_since_the_reader_began() -> None:
    silence = Liveness(60.0)
    silence.waited(60.0)
    assert silence.too_long([3]) == [3]


def test_a_new_generation_has_all_of_its_time() -> None:
    silence = Liveness(60.0)
    silence.hear(1, 1)
    silence.waited(50.0)
    silence.hear(2, 0)
    silence.waited(50.0)
    assert silence.too_long([0, 1]) == []
    silence.waited(10.0)
    assert silence.too_long([0, 1]) == [0, 1]


def test_without_a_timeout_nobody_is_silent() -> None:
    silence = Liveness(None)
    silence.waited(1e9)
    assert silence.too_long([0]) == []
