"""A latch is an event that is made when somebody waits for it."""

from __future__ import annotations

import threading

from tasks.runtime.latch import Latch

PATIENCE = 20.0


def test_who_waits_goes_on_once_it_is_set() -> None:
    latch = Latch()
    assert not latch.wait(0)
    threading.Timer(0.01, latch.set).start()

    assert latch.wait(PATIENCE)
    assert latch.is_set()


def test_who_comes_after_it_was_set_does_not_wait() -> None:
    latch = Latch()
    latch.set()

    assert latch.wait(PATIENCE)


def test_all_who_wait_go_on() -> None:
    latch = Latch()
    went_on: list[bool] = []
    threads = [
        threading.Thread(target=lambda: went_on.append(latch.wait(PATIENCE))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    latch.set()
    for thread in threads:
        thread.join(PATIENCE)

    assert went_on == [True] * 5
