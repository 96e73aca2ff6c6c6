"""Ensemble request: runs one request through the graph of its ensemble.

Flow: ensemble → [ensemble request] → the models of the steps → [ensemble request] → ensemble. Made by the
ensemble, and run in the task of the request's caller. A chain of steps needs no other task; concurrent steps,
and the iterations of decoupled steps, run in tasks of one nursery, so cancelling one cancels all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from actors.ensemble.budget import Pass, PassOwner
from actors.ensemble.clock import StepClock, TimeSpent
from actors.ensemble.composition import Composition
from actors.ensemble.graph import Node, Plan, Step
from actors.ensemble.limits import EnsembleLimits
from actors.ensemble.send_order import SendOrder
from actors.ensemble.sequence import SequenceValues, sequence_of, sequence_override, sequence_parameters
from actors.ensemble.state import EnsembleState, Iteration, Ready
from actors.ensemble.step_request import step_request
from protocol.errors import KINDS, Internal, ServerError, text_of
from protocol.limits.response_memory import ResponseMemory
from protocol.log.tags import about
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor

logger = logging.getLogger("trioton.ensemble_request")


@dataclass(frozen=True, slots=True)
class _Live:
    """An iteration that has begun: its part of the byte budget, and (but for the outermost) its order to respond, and
    the memory in which the response that began it counts with `size` bytes."""

    begun: Pass
    order: SendOrder | None = None
    memory: ResponseMemory | None = None
    size: int = 0


@dataclass(eq=False, slots=True)
class _Stream:
    """The responses of a decoupled step in one iteration; `last` is the send order of the latest. Until it `has_ended`
    well, more of them may come, or an error. `memory` counts them until their iterations have ended."""

    ensemble: EnsembleRequest
    around: Iteration
    node: Node
    request: InferenceRequest
    override: SequenceValues | None
    owner: PassOwner
    memory: ResponseMemory
    last: SendOrder | None = None
    has_ended: bool = False

    async def take(self, response: InferenceResponse) -> None:
        step = self.node.step
        if response.outputs or (step is not None and step.omits_skipped):  # else it is nothing but a flag
            await self.ensemble._take_response(self, response)
        elif response.is_final:
            self.end()

    def end(self) -> None:
        """The stream has no more responses; known from its last one, or from its end."""
        if not self.has_ended:
            self.has_ended = True
            self.ensemble._open_streams -= 1


@dataclass(eq=False, slots=True)
class EnsembleRequest:
    """`run` once. `send` receives the responses of a decoupled ensemble. `spent` is the time that the steps have taken
    so far, `first_response` when the first response was ready, in seconds of Trio's clock."""

    composition: Composition
    limits: EnsembleLimits
    version: int
    request: InferenceRequest
    send: Callable[[InferenceResponse], Awaitable[None]] | None = None
    spent: TimeSpent = field(default_factory=TimeSpent)
    first_response: float | None = None
    _plan: Plan = field(init=False)
    _state: EnsembleState = field(init=False)
    _live: dict[Iteration, _Live] = field(default_factory=dict, init=False)
    _open_streams: int = field(default=0, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _response: InferenceResponse | None = field(default=None, init=False)
    _failure: ServerError | None = field(default=None, init=False)
    _unsent: Exception | None = field(default=None, init=False)

    async def run(self) -> InferenceResponse | None:
        """The only response, or None where all were sent.

        Raises:
            ServerError: `in ensemble 'E', ` and what went wrong, of the kind of the step's own error. All responses
                that come before the failed one have been sent.
            Exception: what `send` has raised, as it was.
        """
        graph = self.composition.graph
        self._plan = graph.plan(self.request.requested_outputs)
        self._state = EnsembleState(self._plan, self.request)
        try:
            begun = await self.limits.begin_request(starts_with=_size(self.request.inputs))
            self._live[self._state.root] = _Live(begun)
            ready = self._state.begin(graph.inputs, graph.reshaped_inputs)
            self._settle(self._state.root)
            if self._plan.is_parallel:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._begin(ready)
            else:
                await self._begin(ready)
        except ServerError as error:
            self._failure = error
        except Exception as error:  # a defect, of ours or of a composing model's scheduler
            logger.exception("ensemble '%s' failed", self.composition.config.name, extra=about(self.request))
            self._failure = Internal(_first_text(error))
        finally:
            for live in self._live.values():
                self._leave(live)
        if self._unsent is not None:
            raise self._unsent
        if self._failure is not None:
            text = f"in ensemble '{self.composition.config.name}', {self._failure}"
            raise _with_text(self._failure, text) from None
        return self._response

    async def _begin(self, ready: Sequence[Ready]) -> None:
        try:
            following = await self._start(ready)
        except ServerError as error:
            await self._fail(self._state.root, error)
        else:
            if following is not None:
                await self._follow(*following)

    async def _fail(self, iteration: Iteration, error: ServerError) -> None:
        """The first error ends the request, once the responses before it have been sent."""
        live = self._live.get(iteration)
        if live is None:
            return  # it has responded, this step was not needed for that
        if live.order is not None:
            await live.order.wait_turn()
        if self._failure is None:
            self._failure = error
        self._end_all()

    def _end_all(self) -> None:
        """Cancel what still runs, as its results are not needed."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _start(self, ready: Sequence[Ready]) -> Ready | None:
        """Take a slot for each of these, and start all but the last in tasks; that one is returned."""
        here: Ready | None = None
        for iteration, node in ready:
            if here is not None:
                self._start_task(*here)
                here = None
            if self.limits.max_requests:
                if node.is_decoupled and iteration.depth:
                    self._start_in_turn(iteration, node)
                    continue
                await self.limits.take_slot(node)
            here = iteration, node
        return here

    def _start_task(self, iteration: Iteration, node: Node) -> None:
        assert self._nursery is not None  # where there is none, no two steps are ready at a time
        self._nursery.start_soon(self._follow, iteration, node)

    def _start_in_turn(self, iteration: Iteration, node: Node) -> None:
        """A decoupled step inside another: its responses are sent in order, so where slots are limited it must not take
        one that an earlier iteration needs, nor delay the step before it while it waits."""
        assert self._nursery is not None
        self._nursery.start_soon(self._run_in_turn, iteration, node)

    async def _run_in_turn(self, iteration: Iteration, node: Node) -> None:
        live = self._live.get(iteration)
        if live is None or live.order is None:
            return
        await live.order.wait_turn()
        try:
            await self.limits.take_slot(node)
        except ServerError as error:
            await self._fail(iteration, error)
        else:
            await self._follow(iteration, node)

    async def _follow(self, iteration: Iteration, node: Node) -> None:
        """Run a step, whose slot is taken, and then one of those that become ready by it, until there is none."""
        following: Ready | None = iteration, node
        try:
            while following is not None:
                iteration, node = following
                if node.step is None:
                    await self._respond(iteration)
                    return
                following = await self._run_node(iteration, node, node.step)
        except ServerError as error:
            await self._fail(iteration, error)

    async def _run_node(self, iteration: Iteration, node: Node, step: Step) -> Ready | None:
        """Run one step. Its slot is given back once those after it have theirs, so a limit applies backpressure to what
        comes before it."""
        last: SendOrder | None = None
        try:
            if iteration not in self._live:
                return None  # it has responded while this waited, and so did not need it
            if not step.is_decoupled:
                return await self._start(await self._run_step(iteration, node, step))
            last = await self._run_stream(iteration, node, step)
        finally:
            self.limits.give_slot(node)
        if last is not None:
            await last.finished()
        self._close(iteration)
        return None

    async def _run_step(self, iteration: Iteration, node: Node, step: Step) -> list[Ready]:
        override = iteration.override(node.reads)
        clock = self._clock(step)
        request = self._step_request(iteration, node, override, clock)
        try:
            response = await self.composition.find(step.model_name, step.model_version).infer(request)
            override = sequence_override(response.parameters, request, override)
        except ServerError as error:
            raise _with_text(error, f"{error} ({step.label})") from None
        finally:
            self._stop(clock)
        outputs = {tensor.name: tensor for tensor in response.outputs}
        ready = self._state.complete(iteration, node, outputs, override)
        self._settle(iteration)
        return ready

    async def _run_stream(self, iteration: Iteration, node: Node, step: Step) -> SendOrder | None:
        """Run a decoupled step; each of its responses begins an iteration. Returns the send order of the last one.

        A response is taken when there is room for its iteration, so a backlog slows the step down.
        """
        override = iteration.override(node.reads)
        clock = self._clock(step)
        request = self._step_request(iteration, node, override, clock)
        request.response_memory = _memory_apart(self.request)
        owner = self.limits.stream_owner(iteration.depth + 1)
        stream = _Stream(self, iteration, node, request, override, owner, _memory_apart(self.request))
        self._open_streams += 1
        try:
            await self.composition.find(step.model_name, step.model_version).infer_stream(request, stream.take)
        except ServerError as error:
            if stream.last is not None:
                await stream.last.finished()
            raise _with_text(error, f"{error} ({step.label})") from None
        finally:
            self._stop(clock)
        stream.end()
        self._state.end_stream(iteration, node)
        self._settle(iteration)
        return stream.last

    async def _take_response(self, stream: _Stream, response: InferenceResponse) -> None:
        """One response of a decoupled step."""
        size = _size(response.outputs)
        while not stream.memory.take(size):
            await stream.memory.wait_freed()
        try:
            begun = await self.limits.begin(stream.owner, starts_with=size)
        except BaseException:
            stream.memory.give(size)
            raise
        child = self._state.new_child(stream.around)
        order = stream.last = SendOrder(stream.last, self._live[stream.around].order)
        self._live[child] = _Live(begun, order, stream.memory, size)
        if response.is_final:
            stream.end()
        try:
            override = sequence_override(response.parameters, stream.request, stream.override)
            outputs = {tensor.name: tensor for tensor in response.outputs}
            ready = self._state.begin_child(child, stream.node, outputs, override)
            self._settle(child)
            following = await self._start(ready)
            if following is not None:
                self._start_task(*following)
        except ServerError as error:
            await self._fail(child, error)

    def _step_request(
        self, iteration: Iteration, node: Node, override: SequenceValues | None, clock: StepClock
    ) -> InferenceRequest:
        inputs = self._state.step_inputs(iteration, node)
        return step_request(self.request, self._plan, node, inputs, override or sequence_of(self.request), clock)

    def _clock(self, step: Step) -> StepClock:
        """The clock of a step; where the request is traced it takes the step's trace, a child of the request's."""
        trace = self.request.trace
        return StepClock(None if trace is None else trace.child(step.model_name))

    def _stop(self, clock: StepClock) -> None:
        self.spent.add(clock.spent)
        clock.end()

    async def _respond(self, iteration: Iteration) -> None:
        """All outputs of an iteration are known."""
        outputs = self._state.response_outputs(iteration)
        if len(outputs) < len(self._plan.outputs):
            self.composition.note_left_out(self._state.left_out(iteration))
        parameters = self._parameters(iteration, outputs)
        request = self.request
        response = InferenceResponse(self.composition.config.name, self.version, outputs, request.id, parameters)
        order = self._live[iteration].order
        if order is not None:
            await order.wait_turn()
            response.is_final = self._is_last(iteration)
        if self.first_response is None:
            self.first_response = trio.current_time()
        if self.send is None:
            self._response = response
        else:
            try:
                await self.send(response)
            except Exception as error:  # whose it is we cannot know; it ends the request, and is raised as it is
                self._unsent = error
                self._end_all()
                return
        self._close(iteration)

    def _parameters(self, iteration: Iteration, outputs: Sequence[Tensor]) -> dict[str, ParameterValue]:
        """The parameters of a response; only one with a tensor of some step has sequence parameters."""
        inputs = self.composition.graph.inputs
        if all(tensor.name in inputs for tensor in outputs):
            return {}
        override = iteration.override(self._plan.response.reads)
        return sequence_parameters(override or sequence_of(self.request))

    def _is_last(self, iteration: Iteration) -> bool:
        """Whether no response can come after that of an iteration whose turn it is: no stream is open, and nothing runs
        but it and those around it. As in Triton, an end of a stream that becomes known later is sent on its own."""
        return not self._open_streams and len(self._live) == iteration.depth + 1

    def _settle(self, iteration: Iteration) -> None:
        """After each change: update what an iteration holds, and close those that cannot give a response."""
        live = self._live.get(iteration)
        if live is not None:
            self.limits.hold(live.begun, iteration.held_bytes)
        for barren in self._state.take_barren():
            self._close(barren)

    def _close(self, iteration: Iteration) -> None:
        """An iteration, and those inside it, will give no response any more."""
        live = self._live.get(iteration)
        if live is None:
            return
        if live.order is None:
            self._end_all()
        else:
            del self._live[iteration]
            self._state.close(iteration)
            self._leave(live)
            live.order.done()

    def _leave(self, live: _Live) -> None:
        """Release an iteration's part of the limits."""
        self.limits.leave(live.begun)
        if live.memory is not None:
            live.memory.give(live.size)


def _first_text(error: BaseException) -> str:
    """The first error of the exception group of a nursery."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return text_of(error)


def _memory_apart(request: InferenceRequest) -> ResponseMemory:
    """The bound for responses that wait for those of another stream inside the same request, or have them wait."""
    return ResponseMemory() if request.response_memory is None else request.response_memory.apart()


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.byte_size for tensor in tensors)


def _with_text(error: ServerError, text: str) -> ServerError:
    """An error of the same kind, not of the same class: a model's own class may mean more."""
    return KINDS.get(error.kind, ServerError)(text)
