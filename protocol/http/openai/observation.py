"""Observation of a call in OpenTelemetry's terms: what the fields of its body ask for, and how its inferences end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from protocol.gen_ai import CHAT, TEXT_COMPLETION, UNRECORDED, Attribute, GenAiCall, Generated, requested
from protocol.http.exchange import ClientGone
from protocol.http.openai.call import Call
from protocol.http.openai.codec.requests import ChatRequest, SamplingFields
from protocol.messages import InferenceRequest


def observe(
    call: Call,
    operation: str,
    inferences: Sequence[InferenceRequest],
    fields: Mapping[str, Attribute],
    result: Callable[[], Generated | None] | None = None,
) -> GenAiCall | None:
    """Begin, where calls are observed. It ends with the run of the inferences."""
    request = call.request
    gen_ai = request.services.gen_ai
    if gen_ai is None:
        if request.record is None:
            return None
        gen_ai = UNRECORDED  # the access log wants its tokens
    observed = GenAiCall(
        gen_ai,
        operation,
        model=call.target.name,
        arrival_ns=request.arrival_ns,
        response_id=call.id,
        result=result,
    )
    observed.requested = fields
    for inference in inferences:
        inference.gen_ai = observed
    return observed


@contextmanager
def observed_run(inferences: Sequence[InferenceRequest]) -> Iterator[None]:
    """The run of the inferences of one call, which ends with it, if it is observed."""
    observed = inferences[0].gen_ai
    if observed is None:
        yield
        return
    try:
        yield
    except ClientGone:
        raise
    except Exception as error:
        observed.fail(error)
        raise
    finally:
        observed.end(inferences[0].trace)


def operation_of(body: SamplingFields) -> str:
    return CHAT if isinstance(body, ChatRequest) else TEXT_COMPLETION


def requested_of(body: SamplingFields) -> dict[str, Attribute]:
    fields = requested(body)
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        fields["max_tokens"] = body.max_completion_tokens
    if body.n is not None and body.n > 1:
        fields["choice.count"] = body.n
    return fields
