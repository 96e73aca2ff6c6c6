"""`trioton.RepositoryControl`: registers and unregisters model repositories at run time.

An extension of ours; Triton has it in its C API.
"""

from __future__ import annotations

from protocol.core import InferenceCore
from protocol.core import ModelRepository as Repository
from protocol.grpc.generated import trioton as pb

SERVICE = "trioton.RepositoryControl"


class RepositoryControlService(pb.RepositoryControlBase):
    """The calls raise Unsupported where clients do not decide what is loaded."""

    def __init__(self, core: InferenceCore) -> None:
        self._core = core

    async def list(self, message: pb.RepositoryListRequest) -> pb.RepositoryListResponse:
        return pb.RepositoryListResponse(
            [pb.ModelRepository(each.path, dict(each.names)) for each in self._core.repositories()]
        )

    async def register(self, message: pb.RepositoryRegisterRequest) -> pb.RepositoryRegisterResponse:
        """Raises InvalidArgument and AlreadyExists."""
        wanted = message.repository or pb.ModelRepository()
        await self._core.register_repository(Repository(wanted.path, wanted.model_names))
        return pb.RepositoryRegisterResponse()

    async def unregister(self, message: pb.RepositoryUnregisterRequest) -> pb.RepositoryUnregisterResponse:
        """Raises InvalidArgument."""
        await self._core.unregister_repository(message.path)
        return pb.RepositoryUnregisterResponse()
