"""Warm-up of a model instance: its samples, run after its load and before it takes requests.

Called by the model instance. The samples go straight to the backend: no scheduler, no statistics, no response cache.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from backends.interface import Backend, InstanceDied, Rescheduled
from protocol.errors import Internal, InvalidArgument, ServerError, text_of
from protocol.messages import InferenceRequest, InferenceResponse
from repository.warmup_data import WarmupSample

logger = logging.getLogger("trioton.warmup")


async def warm_up(backend: Backend, samples: Sequence[WarmupSample]) -> None:
    """Run all samples in order, each as often as it says. Those after a failed one run, too.

    Raises:
        InvalidArgument: with a clause for each sample that failed.
        InstanceDied: the instance is gone.
    """
    failures: list[str] = []
    for sample in samples:
        try:
            for _ in range(sample.count):
                await _run(backend, sample)
        except InstanceDied as error:
            raise InstanceDied(f"failed to run warmup sample '{sample.name}': {error}; ") from error
        except Exception as error:  # whatever a backend raises concerns this load alone
            text = str(error) if isinstance(error, ServerError) else text_of(error)
            failures.append(f"failed to run warmup sample '{sample.name}': {text}; ")
    if failures:
        raise InvalidArgument("".join(failures))
    if samples:
        logger.debug("model instance '%s' has run %d warmup samples", backend.spec.name, len(samples))


async def _run(backend: Backend, sample: WarmupSample) -> None:
    source = backend.spec.source
    requests = sample.requests(source.name, source.version)
    if source.config.is_batching:
        await _execute(backend, requests)
    else:  # such a model takes one request at a time
        for request in requests:
            await _execute(backend, [request])


async def _execute(backend: Backend, requests: Sequence[InferenceRequest]) -> None:
    if backend.spec.config.is_decoupled:
        responders = [_Discard() for _ in requests]
        await backend.execute_decoupled(requests, responders)
        await _wait_ended(backend, responders)
        errors = [responder.error for responder in responders if responder.error is not None]
    else:
        result = await backend.execute(requests)
        if len(result.responses) != len(requests):
            raise Internal(f"got {len(result.responses)} responses to {len(requests)} requests")
        errors = [response for response in result.responses if isinstance(response, ServerError)]
    for error in errors:
        if not isinstance(error, Rescheduled):  # an iterative model has done its round
            raise error


async def _wait_ended(backend: Backend, responders: Sequence[_Discard]) -> None:
    """Wait for the last answers; a backend that dies meanwhile gives none."""

    async def watch() -> None:
        await backend.wait_died()
        for responder in responders:
            responder.close(InstanceDied(f"model instance '{backend.spec.name}' has died"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for responder in responders:
            await responder.ended.wait()
        nursery.cancel_scope.cancel()


@dataclass(eq=False, slots=True)
class _Discard:
    """Implements `backends.interface.Responder` for answers that nobody wants; keeps only how they end."""

    ended: trio.Event = field(default_factory=trio.Event)
    error: ServerError | None = None
    is_cancelled: bool = False

    async def send(self, response: InferenceResponse) -> None:
        await trio.lowlevel.checkpoint()
        self.send_nowait(response)

    def send_nowait(self, response: InferenceResponse) -> bool:
        if response.is_final:
            self.close()
        return True

    def close(self, error: ServerError | None = None) -> None:
        if not self.ended.is_set():
            self.error = error
            self.ended.set()
