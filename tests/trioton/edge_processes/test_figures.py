"""Figures of edge processes are told once, and added up."""

from __future__ import annotations

from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from protocol.open_connections import Open, OpenConnections
from protocol.quotas.accounts import Ledger, Terms
from protocol.quotas.quota import Unit
from trioton.edge_processes.figures import EdgeFigures, FigureSource, KeyUseSource, RelayedCalls
from trioton.edge_processes.messages import KeyUse
from trioton.loop_lag import LoopLag


def test_what_was_told_is_not_told_again() -> None:
    limits, failures, lag, connections = LimitCounter(), CallbackFailures(), LoopLag(), OpenConnections()
    relayed = RelayedCalls()
    source = FigureSource(limits, failures, lag, connections, relayed)
    core_limits, core_failures = LimitCounter(), CallbackFailures()
    sums = EdgeFigures(core_limits, core_failures)
    with connections.of("http", lambda: Open(3, 2)):
        limits.count("http", "idle_timeout")
        failures.note("poller", ValueError("x"), "a test")
        lag._lags.observe(0.004)
        relayed.note()
        sums.add(source.take())
        limits.count("http", "idle_timeout")
        lag._lags.observe(9.0)
        relayed.note()
        sums.add(source.take())
        sums.add(source.take())
    assert core_limits.counts() == {("http", "idle_timeout"): 2}
    assert core_failures.counts() == {"poller": 1}
    assert (sums.streams, sums.relayed) == ({"http": 2}, 2)
    snapshot = sums.lag()
    assert (snapshot.cumulative[-1], snapshot.total) == (2, 9.004)
    assert snapshot.cumulative[:4] == (0, 0, 1, 1)


def test_another_life_of_the_edge_goes_on_with_the_sums() -> None:
    limits = LimitCounter()
    sums = EdgeFigures(limits, CallbackFailures())
    for _ in range(2):
        counted, lag = LimitCounter(), LoopLag()
        counted.count("grpc", "max_connections")
        lag._lags.observe(0.001)
        sums.add(FigureSource(counted, CallbackFailures(), lag, OpenConnections()).take())
    assert limits.counts() == {("grpc", "max_connections"): 2}
    assert sums.lag().cumulative[-1] == 2


def test_use_of_keys_is_added_up_over_edges_and_ends_with_them() -> None:
    terms = [Terms("alice"), Terms("bob")]
    own, core = Ledger(lambda: 0.0), Ledger(lambda: 0.0)
    own.adopt(terms)
    core.adopt(terms)
    source = KeyUseSource(own)
    figures = EdgeFigures(LimitCounter(), CallbackFailures(), lambda: core)
    assert source.take() is None
    charges = [own.account("alice").admit(None, 10) for _ in range(3)]
    charges[0].settle(Unit.BYTES, 5)
    charges[0].end()
    charges[1].withdraw(10)
    charges[1].end()
    first = source.take()
    assert first is not None
    figures.add_use(first)
    usage = core.account("alice").usage
    assert (usage.requests, usage.bytes, usage.running) == (1, 25, 1)
    assert source.take() is None
    figures.note_end()
    assert (usage.requests, usage.running) == (1, 0)
    core.adopt(terms[1:])
    figures.add_use(KeyUse({"alice": (1, 1.0, 1), "bob": (2, 1.0, 0)}))
    assert core.account("bob").usage.requests == 2
