"""A latch is an event that is made when somebody waits for it."""

from __future__ import annotations

import threading

from tasks.runtime.latch import Latch

PATIENCE = 20.0


def test_all_who_wait_go_on() -> None:
    latch = Latch()
    went_on: list[bool] = []
    assert not latch.wait(0)
    threads = [
        threading.Thread(target=lambda: went_on.append(latch.wait(PATIENCE))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    latch.set()
    for thread in threads:
        thread.join(PATIENCE)

    assert went_on == [True] * 5
    assert latch.is_set() and latch.wait(0)
