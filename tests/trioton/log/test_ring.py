"""The bound of a log's ring, and what it counts."""

from __future__ import annotations

import threading

from trioton.log.ring import LineRing


def test_lines_come_in_their_order_and_within_the_bound() -> None:
    ring = LineRing(10)
    for line in (b"12345", b"67890", b"x", b""):
        ring.put(line)
    assert ring.take() == [b"12345", b"67890", b""]
    assert ring.lost == 1
    ring.put(b"1234567890")
    assert ring.take() == [b"1234567890"]
    ring.put(b"12345678901")
    assert ring.lost == 2


def test_only_the_first_line_wakes_and_only_whoever_waits() -> None:
    ring = LineRing(100)
    assert not ring.put(b"a")
    assert ring.take() == [b"a"]
    assert not ring.put(b"b")  # it looks again before it sleeps
    assert ring.take() == [b"b"]
    assert ring.take() == []
    assert [ring.put(b"c"), ring.put(b"d")] == [True, False]


def test_what_is_left_at_the_end_is_lost() -> None:
    ring = LineRing(100)
    ring.put(b"a")
    ring.give_up(2)
    ring.close()
    ring.put(b"b")
    assert ring.take() == []
    assert ring.lost == 4


def test_threads_lose_nothing_of_each_other() -> None:
    ring = LineRing(1 << 20)
    taken: list[bytes] = []

    def put(name: bytes) -> None:
        for number in range(1000):
            ring.put(b"%b %d" % (name, number))

    threads = [threading.Thread(target=put, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += ring.take()
    taken += ring.take()
    assert [line for line in taken if line.startswith(b"a")] == [b"a %d" % number for number in range(1000)]
    assert len(taken) == 2000
