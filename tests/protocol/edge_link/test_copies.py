"""Large requests of an edge process: their tensors are copied beside its loop, and what may happen meanwhile."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
import pytest
import trio

from protocol.core import InferenceCore, Respond
from protocol.edge_link.asked import PendingCall
from protocol.edge_link.limits import LinkLimits
from protocol.edge_link.segments import COPIED_AT_ONCE, WrittenSegment
from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor
from tests.protocol.edge_link.links import Link, linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore

MEMORY = 2 * COPIED_AT_ONCE


class Copies:
    """Where tensors were copied: in the loop or beside it, where each waits until it may go on."""

    def __init__(self) -> None:
        self.beside: list[bool] = []
        self.has_begun = trio.Event()
        self.have_ended = trio.Event()
        self.may_go_on = threading.Event()
        self._loop = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()

    def write(self, write: Callable[..., None], segment: WrittenSegment, place: int, parts: Sequence[Buffer]) -> None:
        is_beside = threading.get_ident() != self._loop
        self.beside.append(is_beside)
        if is_beside:
            self._token.run_sync_soon(self.has_begun.set)
            assert self.may_go_on.wait(60)
        write(segment, place, parts)
        if is_beside:
            self._token.run_sync_soon(self.have_ended.set)


@pytest.fixture
async def copies(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Copies]:
    found, write = Copies(), WrittenSegment.write
    monkeypatch.setattr(WrittenSegment, "write", lambda *arguments: found.write(write, *arguments))
    yield found
    found.may_go_on.set()


@pytest.fixture
def core() -> ScriptedCore:
    return ScriptedCore()


@pytest.fixture
async def link(core: ScriptedCore, copies: Copies) -> AsyncIterator[Link]:
    async with linked(cast(InferenceCore, core), LinkLimits(input_bytes=MEMORY, output_bytes=0)) as link:
        yield link


def large(size: int = COPIED_AT_ONCE + 1, **fields: object) -> InferenceRequest:
    tensor = Tensor.from_numpy("IN", np.arange(size).astype(np.uint8))
    return InferenceRequest("m", [tensor], **fields)  # type: ignore[arg-type]  # any of its fields


def small(id: str) -> InferenceRequest:
    return InferenceRequest("m", [Tensor.from_numpy("IN", np.zeros(8, np.uint8))], id=id)


async def begin(link: Link, request: InferenceRequest, *, task_status: trio.TaskStatus[None]) -> None:
    slot = PendingCall()
    submission = link.core.submit(request, slot)
    task_status.started()
    await slot.reply()
    submission.end()


async def respond(response: InferenceResponse) -> None:
    raise AssertionError(response)


async def test_others_go_on_while_a_large_request_is_copied(link: Link, core: ScriptedCore, copies: Copies) -> None:
    sent = large(id="large")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.core.infer, sent)
        await copies.has_begun.wait()
        await link.core.infer(small("meanwhile"))
        assert [each.request.id for each in core.submitted] == ["meanwhile"]
        copies.may_go_on.set()
    assert [each.request.id for each in core.submitted] == ["meanwhile", "large"]
    assert bytes(core.submitted[1].request.inputs[0].data) == bytes(sent.inputs[0].data)
    assert copies.beside == [True]


async def test_a_large_request_of_a_sequence_is_not_overtaken(link: Link, core: ScriptedCore, copies: Copies) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(begin, link, large(id="first", sequence_id=7))
        await link.core.infer(small("second"))
    assert [each.request.id for each in core.submitted] == ["first", "second"]
    assert copies.beside == [False]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_one_that_is_given_up_meanwhile_does_not_cross(
    link: Link, core: ScriptedCore, copies: Copies, is_stream: bool
) -> None:
    """And its memory is there for the next."""
    ask = partial(link.core.infer_stream, large(), respond) if is_stream else partial(link.core.infer, large())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await copies.has_begun.wait()
        nursery.cancel_scope.cancel()
    copies.may_go_on.set()
    await copies.have_ended.wait()
    await settled()
    await link.core.infer(large(MEMORY, id="next"))
    await settled()
    assert ([each.request.id for each in core.submitted], core.streams) == (["next"], 0)
    assert copies.beside == [True, True]


async def test_one_that_cannot_be_encoded_is_refused(link: Link, core: ScriptedCore, copies: Copies) -> None:
    copies.may_go_on.set()
    for _ in range(2):  # the second finds the memory of the first
        with pytest.raises(InvalidArgument, match="cannot be passed on"):
            await link.core.infer(large(MEMORY, parameters={"a": 1 << 70}))
    await link.core.infer(large(MEMORY))
    assert copies.beside == [True, True, True]


async def test_one_that_cannot_be_copied_fails_alone(
    link: Link, core: ScriptedCore, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    copies.may_go_on.set()
    with monkeypatch.context() as patch:
        patch.setattr("trio.to_thread.run_sync", no_thread)
        with pytest.raises(Internal, match="the request to model 'm' could not be passed on"):
            await link.core.infer(large(MEMORY))
    assert link.failures.counts() == {"edge link": 1}
    link.failures._counts.clear()
    await link.core.infer(large(MEMORY, id="next"))
    assert [each.request.id for each in core.submitted] == ["next"]


async def test_a_stream_begins_with_a_large_request(link: Link, core: ScriptedCore, copies: Copies) -> None:
    async def stream(request: InferenceRequest, respond: Respond) -> bool:
        sizes.append(request.inputs[0].byte_size)
        return True

    sizes: list[int] = []
    core.stream = stream
    copies.may_go_on.set()
    assert await link.core.infer_stream(large(MEMORY), respond)
    assert (sizes, copies.beside) == ([MEMORY], [True])


async def test_the_core_goes_while_one_is_copied(link: Link, copies: Copies) -> None:
    async def ask() -> None:
        with pytest.raises(Unavailable, match="Server exiting"):
            await link.core.infer(large())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await copies.has_begun.wait()
        link.server_scope.cancel()
        await settled()
        copies.may_go_on.set()
