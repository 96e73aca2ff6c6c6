"""`trioton.RequestControl`: cancels requests in flight by their id. An extension of ours; Triton has no such call.

The caller need not be the client that sent the request, nor use the same protocol.
"""

from __future__ import annotations

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument, shown_name
from protocol.grpc.codec.infer import decode_version
from protocol.grpc.generated.trioton import CancelRequest, CancelResponse, RequestControlBase

SERVICE = "trioton.RequestControl"


class RequestControlService(RequestControlBase):
    def __init__(self, core: InferenceCore) -> None:
        self._core = core

    async def cancel(self, message: CancelRequest) -> CancelResponse:
        """Returns how many requests were cancelled.

        Raises:
            InvalidArgument: no id, or a version that is no number.
            NotFound: no such model or version.
        """
        if not message.id:
            raise InvalidArgument(
                f"a request to cancel needs its id, got none for model '{shown_name(message.model_name)}'"
            )
        version = decode_version(message.model_version)
        return CancelResponse(self._core.cancel(message.model_name, message.id, version))
