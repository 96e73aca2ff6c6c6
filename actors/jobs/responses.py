"""All responses of a decoupled model to one request, as far as they are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.core import Respond
from protocol.errors import PayloadTooLarge
from protocol.messages import InferenceRequest, InferenceResponse

# Of all responses to one request together.
MAX_RESULT_BYTES = 1 << 30


class StreamingCore(Protocol):
    """What this needs of `protocol.core.InferenceCore`."""

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool: ...


async def all_responses(
    core: StreamingCore, request: InferenceRequest, tell: Callable[[InferenceResponse], None] = lambda _: None
) -> list[InferenceResponse]:
    """Run a request; `tell` is called with each response as it comes. Raises ServerError, as the core."""
    responses: list[InferenceResponse] = []
    size = 0

    async def keep(response: InferenceResponse) -> None:
        nonlocal size
        size += sum(tensor.byte_size for tensor in response.outputs)
        if size > MAX_RESULT_BYTES:
            raise PayloadTooLarge(
                f"the responses of model '{request.model_name}' have more than {MAX_RESULT_BYTES} bytes, which is "
                f"the most that is kept of one request"
            )
        responses.append(response)
        tell(response)

    await core.infer_stream(request, keep)
    return responses
