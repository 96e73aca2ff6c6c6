"""Rows beside each other, and rows alone."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioton.batch.gate import Gate


async def test_who_is_alone_is_alone(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    gate = Gate()
    inside: list[int] = []
    seen: list[list[int]] = []

    async def pass_gate(name: int, alone: bool) -> None:
        async with gate.passed(alone=alone):
            inside.append(name)
            seen.append(sorted(inside))
            await trio.sleep(1)
            inside.remove(name)

    async with trio.open_nursery() as tasks:
        for name in (1, 2):
            tasks.start_soon(pass_gate, name, False)
        await wait_all_tasks_blocked()
        for name in (3, 4):
            tasks.start_soon(pass_gate, name, True)
        await wait_all_tasks_blocked()
        tasks.start_soon(pass_gate, 5, False)
    assert {1, 2} in map(set, seen[:2])
    assert [len(names) for names in seen[2:]] == [1, 1, 1]
    assert seen[-1] == [5]


async def test_who_gives_up_waiting_lets_others_in(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with gate.passed(alone=False):
        with trio.move_on_after(1):
            async with gate.passed(alone=True):
                raise AssertionError("it is not alone")
        async with gate.passed(alone=False):
            pass
