"""Link requests: takes the requests of one edge process and has the core answer them.

    edge process -> socket -> link server -> [link requests] -> core … actor -> link server

Requests take no task; streams have one each, and so has a request whose key's places are not known yet. All requests of
a frame are submitted with `later`: the link server has the core begin at the end of its burst.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from protocol.core import InferenceCore
from protocol.edge_link.answers import AnswerWriter
from protocol.edge_link.charges import JointCharges, LinkCharge
from protocol.edge_link.frames import BrokenFrame, Frame
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.link_calls import LinkCalls
from protocol.edge_link.link_traces import LinkTraces
from protocol.edge_link.received import Received, RequestReader
from protocol.edge_link.records import CANCEL, CREDIT, PLAIN, REQUEST, STREAM, TEMPLATE
from protocol.edge_link.segments import ReadSegment
from protocol.edge_link.served import LinkedRequest, LinkedStream
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.quotas.accounts import Account


class SendsAnswers(Protocol):
    """The way to the edge."""

    def put(self, request: LinkedRequest) -> None:
        """Its reply has come."""

    def put_streamed(self, stream: LinkedStream, response: InferenceResponse) -> int:
        """The size of a response that goes now; negative where it has to be given to `place_streamed`."""

    async def place_streamed(self, stream: LinkedStream, response: InferenceResponse) -> None:
        """Send a large response, once there is room for it."""

    def wake(self) -> None:
        """What is written is to be sent, also where this is no burst of the poller."""


class LinkRequests:
    """Of one edge process. `begin` comes before the first frame. The handlers of frames raise BrokenFrame.

    Attributes:
        pending, streams: what the edge waits for, by its numbers.
        charges, traces: those of its requests.
    """

    def __init__(
        self,
        core: InferenceCore,
        keys: TellingKeys | None,
        traces: LinkTraces,
        calls: LinkCalls,
        failures: CallbackFailures,
        name: str,
        edge: SendsAnswers,
    ) -> None:
        self.pending: dict[int, LinkedRequest] = {}
        self.streams: dict[int, LinkedStream] = {}
        self.charges = JointCharges()
        self.traces = traces
        self.handlers: dict[int, Callable[[Frame], None]] = {
            TEMPLATE: self._template,
            PLAIN: self._plain,
            REQUEST: self._request,
            CANCEL: self._cancel,
            CREDIT: self._credit,
        }
        self._core = core
        self._keys = keys
        self._calls = calls
        self._failures = failures
        self._name = name
        self._edge = edge

    def begin(self, inputs: ReadSegment, answers: AnswerWriter, nursery: trio.Nursery) -> None:
        self._requests = RequestReader(inputs)
        self._answers = answers
        self._tasks = nursery

    def give_up(self) -> None:
        """What the edge has asked for, and does not want any more."""
        pending, self.pending = self.pending, {}
        for request in pending.values():
            with self._failures.noted("edge link", f"{self._name}: a request could not be cancelled"):
                request.give_up()
        self.charges.end_all()
        self.traces.end_all()

    def check_new(self, number: int) -> None:
        """Raises BrokenFrame."""
        if number in self.pending or number in self.streams or number in self._calls.scopes:
            raise BrokenFrame(f"its request {number} is there already")

    def _template(self, frame: Frame) -> None:
        self._requests.read_template(frame)

    def _plain(self, frame: Frame) -> None:
        key, size, requests = self._requests.read_plain(frame)
        pending, submit, ready = self.pending, self._core.submit, self._edge.put
        account, refusal = self._account(key) if key else (None, None)
        is_limited = account is not None and account.quota is not None
        for number, request in requests:
            if number in pending:
                raise BrokenFrame(f"its request {number} is there already")
            if account is not None:
                request.charge = LinkCharge(account)
            if refusal is not None:
                self._refuse(number, refusal)
            elif is_limited:  # which the edge does not know yet
                self.check_new(number)
                self._submit(Received(number, 0, request, key, size, 0, 1, None))
            else:
                linked = pending[number] = LinkedRequest(number, ready)
                linked.submitted = submit(request, linked, later=True)

    def _request(self, frame: Frame) -> None:
        received = self._requests.read(frame)
        self.check_new(received.number)
        if received.key:
            account, refusal = self._account(received.key)
            if refusal is not None:
                self._refuse(received.number, refusal)
                return
            assert account is not None
            is_joint = received.charge != 0
            received.request.charge = self.charges.of(received, account) if is_joint else LinkCharge(account)
        self._submit(received)

    def _submit(self, received: Received, *, is_known: bool = False) -> None:
        """Give a request to the core, once its key is charged; with a trace, if it is its turn. If it `is_known` how
        many places its key has here, it is refused where there is none."""
        number, flags, request, _, size, *_, trace = received
        charge = request.charge
        limited = charge if isinstance(charge, LinkCharge) and charge.is_limited else None
        if limited is not None:
            if not (is_known or limited.is_admitted or limited.account.is_known(request.model_name)):
                scope = self._calls.scopes[number] = trio.CancelScope()
                self._tasks.start_soon(self._submit_when_known, scope, limited, received)
                return
            try:
                limited.admit(request.model_name, size)
            except ServerError as refusal:
                if limited.is_joint:  # a call of texts has header fields of that, refused or not
                    self._answers.write_left(number, limited)
                self._refuse(number, refusal)
                return
        if trace is not None and self.traces.begin(number, request, trace):
            self._answers.write_traced(number)
        if flags & STREAM:
            stream = LinkedStream(number, request.id, self._edge.put_streamed, self._edge.place_streamed)
            stream.charge, stream.call = limited, request.gen_ai
            self.streams[number] = stream
            self._tasks.start_soon(self._run_stream, stream, request)
        else:
            linked = self.pending[number] = LinkedRequest(number, self._edge.put, charge=limited)
            linked.submitted = self._core.submit(request, linked, later=True)

    async def _submit_when_known(self, scope: trio.CancelScope, charge: LinkCharge, received: Received) -> None:
        """Other servers have a part of its key's places, and a store says how many there are here."""
        try:
            with scope:
                await charge.account.wait_known(received.request.model_name, is_early=True)
        finally:
            del self._calls.scopes[received.number]
        if not scope.cancel_called:  # also not in the turn in which it came to be known
            self._submit(received, is_known=True)
            self._edge.wake()

    async def _run_stream(self, stream: LinkedStream, request: InferenceRequest) -> None:
        error: ServerError | None = None
        is_final = False
        try:
            with stream.scope:
                try:
                    is_final = await self._core.infer_stream(request, stream)
                except ServerError as found:
                    error = found
                except Exception as found:
                    error = self._calls.defect(f"a stream of model '{request.model_name}'", found)
                if request.trace is not None:
                    self._answers.write_events(stream.number, request.trace)
                if request.gen_ai is not None:
                    self._answers.write_noted(stream.number, request.gen_ai)
                if stream.charge is not None:
                    self._answers.write_left(stream.number, stream.charge)
                if error is None:
                    self._answers.write_end(stream.number, is_final=is_final)
                else:
                    self._answers.write_error(stream.number, error)
        finally:
            if stream.charge is not None:
                stream.charge.answered()
            del self.streams[stream.number]
        self._edge.wake()

    def _account(self, key: str) -> tuple[Account | None, ServerError | None]:
        """What requests of this key are charged to, or why they are refused."""
        if self._keys is None:
            raise BrokenFrame(f"its request is of the key {key!r}, and there are no keys")
        try:
            return self._keys.account(key), None
        except ServerError as refusal:
            return None, refusal

    def _refuse(self, number: int, refusal: ServerError) -> None:
        self._answers.write_error(number, refusal)
        self._edge.wake()

    def _cancel(self, frame: Frame) -> None:
        (number,) = frame.take(1)
        if (request := self.pending.pop(number, None)) is not None:
            request.give_up()
        elif (stream := self.streams.get(number)) is not None:
            stream.scope.cancel()
        elif (scope := self._calls.scopes.get(number)) is not None:
            scope.cancel()

    def _credit(self, frame: Frame) -> None:
        number, responses, size = frame.take(3)
        if responses < 0 or size < 0:
            raise BrokenFrame(f"it takes back {-responses} responses of {-size} bytes")
        if (stream := self.streams.get(number)) is not None:
            stream.credit(responses, size)
