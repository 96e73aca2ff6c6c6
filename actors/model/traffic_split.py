"""Traffic split: a servable without instances, which forwards each request to one of its targets.

Flow: core → [traffic split] → servable → … Started and owned by the model manager, as any model. Targets are looked up
for each request, so they can be replaced and unloaded meanwhile. Copies to shadows run in its nursery; a request to a
target needs no task here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import trio
from msgspec.structs import replace

from actors.instance.readiness import all_ready
from actors.metrics.latencies import HistogramDetail
from actors.model.servable import Servable
from actors.model.split_policy import SplitPolicy
from actors.model.submission import Submission, cancelled, refused
from actors.model.version import ModelVersion
from protocol.core import ReplyChannel, Respond
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TextModel
from repository.model_config import ModelConfig
from repository.traffic_split import Shadow, Target, TrafficSplitConfig, completed_split, read_split

logger = logging.getLogger("trioton.traffic_split")

SPLIT_VERSION = 1
# The parameter of a response that says who has given it, as <model>:<version>.
SERVED_BY = "served_by"
# A servable by name and version (-1 for the latest that is ready); raises ServerError if it does not serve.
FindServable: TypeAlias = Callable[[str, int], Servable]


class TrafficSplit(ModelVersion):
    """The split of a valid configuration. Implements `actors.model.servable.Servable`. Requests are checked, counted
    and cached by the targets.

    Raises:
        InvalidArgument: the split or its targets are not as they must be.
    """

    def __init__(self, config: ModelConfig, find: FindServable) -> None:
        split = read_split(config)
        models = [_found(config.name, find, part) for part in split.parts]
        completed = completed_split(config, split, [model.config for model in models])
        super().__init__(completed, SPLIT_VERSION, models[0].labels, histograms=HistogramDetail.NONE)
        self._split = split
        self._find = find
        self._policy = SplitPolicy(split)
        self._drained = trio.Event()
        self._shadows: trio.Nursery | None = None
        self._shadow_count = 0
        # Requests by model, version asked for, and what became of them: primary, shadow, or shadow_dropped.
        self._routed: Counter[tuple[str, int, str]] = Counter()

    @property
    def is_ready(self) -> bool:
        """Whether all targets that get requests are ready; shadows do not count."""
        try:
            return all(target.is_ready for target in self._targets())
        except ServerError:
            return False

    @property
    def takes_device_tensors(self) -> bool:
        return False

    @property
    def queue_takes_timeout(self) -> bool:
        """Whether that of any target does."""
        try:
            return any(target.queue_takes_timeout for target in self._targets())
        except ServerError:
            return False

    async def check_ready(self) -> bool:
        return self.is_ready and await all_ready([target.check_ready for target in self._targets()])

    def _targets(self) -> list[Servable]:
        """Those that get requests. Raises ServerError where one does not serve."""
        return [self._find(each.model, each.version) for each in self._split.targets if each.weight]

    @property
    def text(self) -> TextModel | None:
        """That of the first target, whose tokenizer and template all are taken to have."""
        try:
            text = self._targets()[0].text
        except ServerError:
            return None
        return None if text is None else replace(text, name=self.config.name, version=self.version)

    def routed(self) -> Sequence[tuple[str, str, str, int]]:
        return [(name, str(version), role, count) for (name, version, role), count in sorted(self._routed.items())]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The copies to shadows that are under way when it is drained are given up."""
        async with trio.open_nursery() as shadows:
            self._shadows = shadows
            try:
                task_status.started()
                await self._drained.wait()
            finally:
                self._shadows = None
                self._is_over = True
                shadows.cancel_scope.cancel()

    def drain(self, *, lets_sequences_end: bool = False) -> None:
        self._drained.set()

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, later: bool = False) -> Submission:
        try:
            target, forwarded = self._route(request)
            servable = self._find(target.model, target.version)
        except ServerError as error:
            return refused(request, reply_to, error)
        submission = ForwardedRequest(request, trio.current_time(), reply_to=reply_to, split=self)
        submission.forwarded = servable.submit(forwarded, submission)
        return submission

    def flush(self) -> None:
        """Targets are never given requests that wait for it."""

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        target, forwarded = self._route(request)

        async def hand_on(response: InferenceResponse) -> None:
            await respond(self.as_own(response))

        return await self._find(target.model, target.version).infer_stream(forwarded, hand_on)

    def _route(self, request: InferenceRequest) -> tuple[Target, InferenceRequest]:
        target = self._split.targets[self._policy.choose(_key(self._split, request))]
        self._routed[target.model, target.version, "primary"] += 1
        forwarded = _copy(request, target)
        # Copies would not keep the order of a sequence, and most of its requests would be missing.
        if self._split.shadows and not request.sequence_id:
            for number in self._policy.choose_shadows():
                self._send_shadow(self._split.shadows[number], request)
        return target, forwarded

    def _send_shadow(self, shadow: Shadow, request: InferenceRequest) -> None:
        """Send a copy, unless too many are under way: a slow shadow must not pile up requests."""
        if self._shadows is None or self._shadow_count >= self._split.max_shadow_requests:
            self._routed[shadow.model, shadow.version, "shadow_dropped"] += 1
            return
        self._routed[shadow.model, shadow.version, "shadow"] += 1
        self._shadow_count += 1
        self._shadows.start_soon(self._run_shadow, shadow, replace(_copy(request, shadow), trace=None, caller=None))

    async def _run_shadow(self, shadow: Shadow, request: InferenceRequest) -> None:
        try:
            await self._find(shadow.model, shadow.version).infer_stream(request, _drop)
        except Exception as error:  # its model counts it; the client must not notice
            logger.debug("traffic split '%s': shadow '%s' failed: %s", self.config.name, shadow.model, error)
        finally:
            self._shadow_count -= 1

    def as_own(self, response: InferenceResponse) -> InferenceResponse:
        served_by = f"{response.model_name}:{response.model_version}"
        return replace(response, model_name=self.config.name, parameters={**response.parameters, SERVED_BY: served_by})


class ForwardedRequest(Submission, kw_only=True):
    """A request that a split has sent to one of its targets, and the reply channel of the copy that went there."""

    reply_to: ReplyChannel
    split: TrafficSplit
    forwarded: Submission | None = None  # until it has ended: the two know each other

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        """Implements `protocol.core.ReplyChannel`."""
        self.reply_to.send_nowait(self.split.as_own(value) if isinstance(value, InferenceResponse) else value)

    def end(self) -> None:
        forwarded, self.forwarded = self.forwarded, None
        try:
            if forwarded is not None:
                forwarded.end()
        finally:
            if self.acceptance is not None:
                self.acceptance.answered(self)

    def give_up(self) -> None:
        forwarded, self.forwarded = self.forwarded, None
        try:
            if forwarded is not None:
                forwarded.give_up()
        finally:
            self.end()

    def cancel(self) -> None:
        self.cancel_called = True
        with suppress(trio.WouldBlock):  # the answer is there, and its taker has not run yet
            self.reply_to.send_nowait(cancelled(self.request))
        self.abandon()

    def abandon(self) -> None:
        if self.forwarded is not None:
            self.forwarded.abandon()


async def _drop(response: InferenceResponse) -> None:
    await trio.lowlevel.checkpoint()


def _copy(request: InferenceRequest, part: Target | Shadow) -> InferenceRequest:
    """The inputs' list is its own, since the check of a request orders it; their data is shared."""
    return replace(request, model_name=part.model, model_version=part.version, inputs=list(request.inputs))


def _key(split: TrafficSplitConfig, request: InferenceRequest) -> str | None:
    if request.sequence_id:
        return f"sequence {request.sequence_id}"
    value = request.parameters.get(split.sticky) if split.sticky else None
    return None if value is None else f"parameter {value}"


def _found(name: str, find: FindServable, part: Target | Shadow) -> Servable:
    try:
        return find(part.model, part.version)
    except ServerError as error:
        raise InvalidArgument(f"traffic split '{name}': '{part.model}' does not serve: {error}") from None
