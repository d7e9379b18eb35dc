from __future__ import annotations

from fanout.kafka.shuffle.producers import Liveness


def test_a_producer_is_silent_as_long_as_the_reader_has_waited_since() -> None:
    liveness = Liveness(60.0)
    liveness.note_frame(1, 0)
    liveness.waited(59.0)
    liveness.note_frame(1, 1)
    assert liveness.timed_out([0, 1]) == []
    liveness.waited(1.0)
    assert liveness.timed_out([0, 1]) == [0]
    liveness.waited(59.0)
    assert liveness.timed_out([0, 1]) == [0, 1]


def test_one_that_was_never_heard_is_silent_since_the_reader_began() -> None:
    liveness = Liveness(60.0)
    liveness.waited(60.0)
    assert liveness.timed_out([3]) == [3]


def test_a_new_generation_has_all_of_its_time() -> None:
    liveness = Liveness(60.0)
    liveness.note_frame(1, 1)
    liveness.waited(50.0)
    liveness.note_frame(2, 0)
    liveness.waited(50.0)
    assert liveness.timed_out([0, 1]) == []
    liveness.waited(10.0)
    assert liveness.timed_out([0, 1]) == [0, 1]


def test_without_a_timeout_nobody_is_silent() -> None:
    liveness = Liveness(None)
    liveness.waited(1e9)
    assert liveness.timed_out([0]) == []
