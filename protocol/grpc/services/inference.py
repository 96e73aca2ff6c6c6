"""Inference service: every method of `GRPCInferenceService`, mapped to the core.

The messages are betterproto2's, but for those of the infer path (bytes, see `codec.infer`), the answers that grow with
the number of models (bytes, written in slices), and the two that carry bulk (Google protobuf). Source: KServe v2 over
gRPC, and Triton's extensions of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import betterproto2
from google.protobuf.json_format import ParseDict
from grpclib.const import Cardinality, Handler

from protocol import core as vocabulary
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument, NotFound, Unavailable, Unsupported
from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.infer import decode_version
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.codec.wire import field_start
from protocol.grpc.generated import inference as pb
from protocol.grpc.inference.infer import model_infer
from protocol.grpc.inference.stream_infer import StreamInfer
from protocol.grpc.services.settings import SettingsCalls
from protocol.grpc.services.shared_memory import SharedMemoryCalls
from protocol.grpc.settings import GrpcSettings
from protocol.messages import Buffer
from protocol.proto import message_class
from protocol.reactor.replies import Replies
from protocol.services import EdgeServices
from protocol.sync.sliced import Sliced, run_sliced

_SERVICE = "/inference.GRPCInferenceService/"


class InferenceService(SharedMemoryCalls, SettingsCalls):
    """Handlers of all its calls, by the settings about inference."""

    def __init__(
        self, services: EdgeServices, settings: GrpcSettings, templates: RequestTemplates, replies: Replies | None
    ) -> None:
        self._services = services
        self._core = services.core
        self._settings = settings
        self._templates = templates
        self._answers = replies if settings.has_fast_path else None

    def __mapping__(self) -> dict[str, Handler]:
        mapping = dict(super().__mapping__())
        unary, stream = Cardinality.UNARY_UNARY, Cardinality.STREAM_STREAM
        config, load = "inference.ModelConfigResponse", "inference.RepositoryModelLoadRequest"
        own = {
            "ModelInfer": Handler(self._model_infer, unary, memoryview, bytes),
            "ModelStreamInfer": Handler(self._model_stream_infer, stream, memoryview, bytes),
            "ModelStatistics": Handler(self._model_statistics, unary, pb.ModelStatisticsRequest, bytes),
            "RepositoryIndex": Handler(self._repository_index, unary, pb.RepositoryIndexRequest, bytes),
            "ModelConfig": Handler(self._model_config, unary, pb.ModelConfigRequest, message_class(config)),
            "RepositoryModelLoad": Handler(
                self._repository_model_load, unary, message_class(load), pb.RepositoryModelLoadResponse
            ),
        }
        mapping.update({_SERVICE + name: handler for name, handler in own.items()})
        return mapping

    # Inference.

    async def _model_infer(self, stream: Stream) -> None:
        self._compress(stream)
        await model_infer(self._services, self._templates, stream)

    async def _model_stream_infer(self, stream: Stream) -> None:
        self._compress(stream)
        most = self._settings.max_in_flight_per_stream
        await StreamInfer(self._services, self._templates, self._answers, stream, most).run()

    def _compress(self, stream: Stream) -> None:
        if self._settings.compression_level:
            stream.compress_responses(self._settings.compression_level)

    # Health and metadata.

    async def server_live(self, message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._core.is_live())

    async def server_ready(self, message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=await self._core.check_ready())

    async def model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        version = decode_version(message.version)
        try:
            ready = await self._core.check_model_ready(message.name, version)
        except (NotFound, Unavailable):  # clients ask whether it is there, and take an error for one of their own
            self._core.is_ready()  # raises while the server ends: that is not a model's state
            ready = False
        return pb.ModelReadyResponse(ready=ready)

    async def server_metadata(self, message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        metadata = self._core.server_metadata()
        return pb.ServerMetadataResponse(metadata.name, metadata.version, list(metadata.extensions))

    async def model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        metadata = self._core.model_metadata(message.name, decode_version(message.version))
        return pb.ModelMetadataResponse(
            name=metadata.name,
            versions=list(metadata.versions),
            platform=metadata.platform,
            inputs=[_tensor_metadata(tensor) for tensor in metadata.inputs],
            outputs=[_tensor_metadata(tensor) for tensor in metadata.outputs],
        )

    async def _model_config(self, stream: Stream) -> None:
        request: pb.ModelConfigRequest = await stream.recv_message()
        config = self._core.model_config(request.name, decode_version(request.version))
        response: Any = message_class("inference.ModelConfigResponse")()
        ParseDict(config, response.config)
        await stream.send_message(response)

    async def _model_statistics(self, stream: Stream) -> None:
        request: pb.ModelStatisticsRequest = await stream.recv_message()
        statistics = self._core.each_statistics(request.name, decode_version(request.version))
        await stream.send_message(await run_sliced(_repeated(map(_model_statistics, statistics))))

    # The model repository.

    async def _repository_index(self, stream: Stream) -> None:
        request: pb.RepositoryIndexRequest = await stream.recv_message()
        _refuse_repository_name(request.repository_name)
        index = await self._core.repository_index(ready=request.ready)
        await stream.send_message(await run_sliced(_repeated(map(_model_index, index))))

    async def _repository_model_load(self, stream: Stream) -> None:
        request: Any = await stream.recv_message()
        _refuse_repository_name(request.repository_name)
        await self._core.load_model(request.model_name, _load_parameters(request.parameters))
        await stream.send_message(pb.RepositoryModelLoadResponse())

    async def repository_model_unload(
        self, message: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        _refuse_repository_name(message.repository_name)
        unload_dependents = False
        if (parameter := message.parameters.get("unload_dependents")) is not None:
            if parameter.bool_param is None:
                raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            unload_dependents = parameter.bool_param
        await self._core.unload_model(message.model_name, unload_dependents=unload_dependents)
        return pb.RepositoryModelUnloadResponse()


def _repeated(messages: Iterable[betterproto2.Message]) -> Sliced[bytes]:
    """A response whose only field, of number 1, is repeated: one message is serialized after the other."""
    parts: list[bytes] = []
    for message in messages:
        serialized = bytes(message)
        parts += (field_start(1, len(serialized)), serialized)
        yield
    return b"".join(parts)


def _model_index(one: vocabulary.ModelIndex) -> pb.RepositoryIndexResponseModelIndex:
    return pb.RepositoryIndexResponseModelIndex(one.name, one.version, one.state, one.reason)


def _refuse_repository_name(name: str) -> None:
    if name:
        raise Unsupported("'repository_name' specification is not supported")


def _load_parameters(parameters: Any) -> LoadParameters:
    config: str | None = None
    files: dict[str, Buffer] = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if key == "config":
            if kind != "string_param":
                raise InvalidArgument("invalid value type for load parameter 'config', expected string_param.")
            config = parameter.string_param
        elif key.startswith("file:"):
            if kind != "bytes_param":
                raise InvalidArgument(f"invalid value type for load parameter '{key}', expected bytes_param.")
            files[key.removeprefix("file:")] = parameter.bytes_param
        else:
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
    return LoadParameters(config, files)


def _tensor_metadata(tensor: vocabulary.TensorMetadata) -> pb.ModelMetadataResponseTensorMetadata:
    return pb.ModelMetadataResponseTensorMetadata(tensor.name, tensor.datatype, list(tensor.shape))


def _duration(duration: vocabulary.StatisticDuration) -> pb.StatisticDuration:
    return pb.StatisticDuration(duration.count, duration.ns)


def _response_statistics(of: vocabulary.InferResponseStatistics) -> pb.InferResponseStatistics:
    return pb.InferResponseStatistics(
        compute_infer=_duration(of.compute_infer),
        compute_output=_duration(of.compute_output),
        success=_duration(of.success),
        fail=_duration(of.fail),
        empty_response=_duration(of.empty_response),
        cancel=_duration(of.cancel),
    )


def _model_statistics(one: vocabulary.ModelStatistics) -> pb.ModelStatistics:
    of = one.inference_stats
    return pb.ModelStatistics(
        name=one.name,
        version=one.version,
        last_inference=one.last_inference,
        inference_count=one.inference_count,
        execution_count=one.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(of.success),
            fail=_duration(of.fail),
            queue=_duration(of.queue),
            compute_input=_duration(of.compute_input),
            compute_infer=_duration(of.compute_infer),
            compute_output=_duration(of.compute_output),
            cache_hit=_duration(of.cache_hit),
            cache_miss=_duration(of.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=batch.batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for batch in one.batch_stats
        ],
        memory_usage=[pb.MemoryUsage(used.type, used.id, used.byte_size) for used in one.memory_usage],
        response_stats={index: _response_statistics(of) for index, of in one.response_stats.items()},
    )
