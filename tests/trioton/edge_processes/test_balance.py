"""Which edge process gets the next connection."""

from __future__ import annotations

import random

from trioton.edge_processes.balance import MOST_UNTAKEN, SUSPECT_AFTER, EdgeLoad, order


def ready(count: int) -> list[EdgeLoad]:
    return [EdgeLoad(is_ready=True) for _ in range(count)]


def hand(edges: list[EdgeLoad], number: int, word: str = "http") -> EdgeLoad:
    chosen = order(edges)[0]
    chosen.note_handed(word, number, is_too_many=False)
    chosen.note_progress(1, {})
    return chosen


def test_eight_connections_are_two_on_each_of_four() -> None:
    edges = ready(4)
    for number in range(1, 9):
        hand(edges, number)
    assert [edge.open_count for edge in edges] == [2, 2, 2, 2]


def test_edges_never_differ_by_more_than_one_where_none_end() -> None:
    edges = ready(3)
    for number in range(1, 100):
        hand(edges, number)
        counts = [edge.open_count for edge in edges]
        assert max(counts) - min(counts) <= 1


def test_the_one_whose_connections_have_ended_gets_the_next() -> None:
    edges = ready(2)
    for number in range(1, 7):
        hand(edges, number)
    edges[1].note_progress(0, {"http": 2})
    assert hand(edges, 7) is edges[1]
    assert hand(edges, 8) is edges[1]


def test_of_idle_ones_all_have_their_turn() -> None:
    edges = ready(3)
    chosen = []
    for number in range(1, 7):
        edge = hand(edges, number)
        edge.note_progress(0, {"http": 1})
        chosen.append(edges.index(edge))
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_one_that_is_not_ready_or_busy_or_silent_or_full_gets_none() -> None:
    starting, busy, silent, full, good = EdgeLoad(), *ready(4)
    busy.untaken = MOST_UNTAKEN
    silent.unanswered = SUSPECT_AFTER
    full.is_full = True
    assert order([starting, busy, silent, full, good]) == [good]
    assert order([starting, busy, silent, full]) == []


def test_one_too_many_is_not_open() -> None:
    (edge,) = ready(1)
    edge.note_handed("grpc", 1, is_too_many=True)
    assert (edge.open_count, edge.untaken, dict(edge.open)) == (0, 1, {})


def test_counts_never_fall_below_zero_whatever_an_edge_tells() -> None:
    (edge,) = ready(1)
    edge.note_handed("grpc", 1, is_too_many=False)
    edge.note_progress(9, {"grpc": 5, "http": random.randint(1, 5)})
    assert (edge.open_count, edge.untaken, edge.open["grpc"], edge.open["http"]) == (0, 0, 0, 0)
