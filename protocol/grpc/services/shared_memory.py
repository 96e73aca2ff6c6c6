"""The shared memory methods of the inference service: register, unregister, status.

All rules and texts are those of `protocol.shared_memory.table`. Source: Triton's shared memory extensions.
"""

from __future__ import annotations

import trio

from protocol.grpc.generated import inference as pb
from protocol.services import EdgeServices


class SharedMemoryCalls(pb.GrpcInferenceServiceBase):
    """A part of the inference service."""

    _services: EdgeServices

    async def system_shared_memory_status(
        self, message: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        regions = self._services.shared_memory.system_status(message.name)
        status = pb.SystemSharedMemoryStatusResponseRegionStatus
        return pb.SystemSharedMemoryStatusResponse(
            {region.name: status(region.name, region.key, region.offset, region.byte_size) for region in regions}
        )

    async def system_shared_memory_register(
        self, message: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._services.shared_memory.register_system(message.name, message.key, message.offset, message.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._services.shared_memory.unregister_system(message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(
        self, message: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        regions = self._services.shared_memory.cuda_status(message.name)
        status = pb.CudaSharedMemoryStatusResponseRegionStatus
        return pb.CudaSharedMemoryStatusResponse(
            {region.name: status(region.name, region.device_id, region.byte_size) for region in regions}
        )

    async def cuda_shared_memory_register(
        self, message: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        # The first one loads the GPU's libraries.
        await trio.to_thread.run_sync(
            self._services.shared_memory.register_cuda,
            *(message.name, bytes(message.raw_handle), message.device_id, message.byte_size),
        )
        return pb.CudaSharedMemoryRegisterResponse()

    async def cuda_shared_memory_unregister(
        self, message: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        await trio.to_thread.run_sync(self._services.shared_memory.unregister_cuda, message.name)
        return pb.CudaSharedMemoryUnregisterResponse()
