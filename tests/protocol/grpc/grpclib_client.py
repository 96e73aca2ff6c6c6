"""grpclib's client in a process of its own, on asyncio: `python -m tests.protocol.grpc.grpclib_client <host> <port>`.

It calls in each of grpclib's cardinalities that the server has, and prints what it got as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from tritonclient.grpc import service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService"


def infer_request(model: str, request_id: str, **parameters: int) -> Any:
    request = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[b"\1\2\3\4"])
    request.inputs.add(name="x", datatype="INT32", shape=[1])
    for key, value in parameters.items():
        request.parameters[key].int64_param = value
    return request


async def use(channel: Channel) -> dict[str, Any]:
    metadata: Any = UnaryUnaryMethod(
        channel, f"{SERVICE}/ServerMetadata", pb.ServerMetadataRequest, pb.ServerMetadataResponse
    )
    infer: Any = UnaryUnaryMethod(channel, f"{SERVICE}/ModelInfer", pb.ModelInferRequest, pb.ModelInferResponse)
    found: dict[str, Any] = {"name": (await metadata(pb.ServerMetadataRequest())).name}
    response = await infer(infer_request("echo", "7"), metadata={"x-user": "ann"}, timeout=20)
    found["infer"] = [response.id, response.raw_output_contents[0].hex()]
    for model, timeout in (("unknown", 20.0), ("forever", 0.2)):
        try:
            await infer(infer_request(model, "8"), timeout=timeout)
        except GRPCError as error:
            found[model] = [error.status.name, error.message]
        except TimeoutError:
            found[model] = ["TIMEOUT", ""]
    found["stream"] = await stream(channel)
    found["health"] = await watch(channel)
    found["services"] = await services(channel)
    return found


async def stream(channel: Channel) -> list[Any]:
    method: Any = StreamStreamMethod(
        channel, f"{SERVICE}/ModelStreamInfer", pb.ModelInferRequest, pb.ModelStreamInferResponse
    )
    found = []
    async with method.open() as call:
        for request in (infer_request("many", "a", responses=2), infer_request("unavailable", "b")):
            await call.send_message(request)
        await call.end()
        async for one in call:
            inner = one.infer_response
            found.append([inner.id, one.error_message, inner.parameters["triton_final_response"].bool_param])
    return sorted(found)


async def watch(channel: Channel) -> str:
    method: Any = UnaryStreamMethod(channel, "/grpc.health.v1.Health/Watch", HealthCheckRequest, HealthCheckResponse)
    async with method.open() as call:
        await call.send_message(HealthCheckRequest(), end=True)
        response = await call.recv_message()
        await call.cancel()
    return str(HealthCheckResponse.ServingStatus.Name(response.status))


async def services(channel: Channel) -> list[str]:
    method: Any = StreamStreamMethod(
        channel,
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ServerReflectionRequest,
        ServerReflectionResponse,
    )
    async with method.open() as call:
        await call.send_message(ServerReflectionRequest(list_services=""), end=True)
        response = await call.recv_message()
        await call.recv_message()
    return [service.name for service in response.list_services_response.service]


async def main(host: str, port: int) -> None:
    channel = Channel(host, port)
    try:
        print(json.dumps(await use(channel)))
    finally:
        channel.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
