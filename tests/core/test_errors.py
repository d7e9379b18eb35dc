from __future__ import annotations

import fanout
from fanout import errors


def test_every_error_can_be_imported_from_fanout() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, fanout.FanOutError)
    }
    assert raised == set(errors.__all__)
    assert raised <= set(fanout.__all__)
    assert all(getattr(fanout, name) is getattr(errors, name) for name in raised)
