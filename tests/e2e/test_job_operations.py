"""Jobs over gRPC as long-running operations, on a real server, with grpcio and Google's own stubs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from google.longrunning import operations_pb2, operations_pb2_grpc  # type: ignore[import-untyped]
from google.protobuf import any_pb2, duration_pb2
from tritonclient.grpc import service_pb2

from protocol.proto import message_class
from tests.e2e.job_client import JobClient
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually

KEYS = """
[keys.ann]
key = "ann-0123456789abcdef"
allow = ["all"]
[keys.bob]
key = "bob-0123456789abcdef"
allow = ["all"]
[keys.eve]
key = "eve-0123456789abcdef"
allow = ["all"]
quota = "small"
[quotas.small]
requests = { limit = 3, seconds = 3600, burst = 3 }
"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "models"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("operations")
    add_add_sub(folder / "models" / "add_sub", versions=(1,))
    copy_python_model("slow", folder / "models")
    (folder / "keys.toml").write_text(KEYS)
    flags = (f"--jobs-store={folder / 'jobs'}", f"--auth-keys-file={folder / 'keys.toml'}")
    with ServerProcess(*flags, repository=folder / "models") as server:
        yield server


class Caller:
    """Calls with one key."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        self.operations = operations_pb2_grpc.OperationsStub(channel)
        self.options: Any = {
            "metadata": (("authorization", f"Bearer {name}-0123456789abcdef"),),
            "timeout": TIMEOUT_SECONDS,
        }
        self._create = channel.unary_unary("/trioton.Jobs/Create", None, operations_pb2.Operation.FromString)
        self._results = channel.unary_stream("/trioton.Jobs/Results", None, message_class("trioton.JobItem").FromString)

    def create(self, requests: Sequence[bytes], **more: Any) -> operations_pb2.Operation:
        wanted: Any = message_class("trioton.CreateJobRequest")(**more)
        for number, request in enumerate(requests):
            one = wanted.requests.add(custom_id=f"number {number}")
            one.request.ParseFromString(request)
        return self._create(wanted.SerializeToString(), **self.options)

    def results(self, name: str) -> list[Any]:
        return list(
            self._results(message_class("trioton.JobResultsRequest")(name=name).SerializeToString(), **self.options)
        )

    def get(self, name: str) -> operations_pb2.Operation:
        return self.operations.GetOperation(operations_pb2.GetOperationRequest(name=name), **self.options)

    def wait(self, name: str, seconds: int = 60) -> operations_pb2.Operation:
        timeout = duration_pb2.Duration(seconds=seconds)
        request = operations_pb2.WaitOperationRequest(name=name, timeout=timeout)
        return self.operations.WaitOperation(request, **self.options)

    def list(self, **wanted: Any) -> operations_pb2.ListOperationsResponse:
        return self.operations.ListOperations(operations_pb2.ListOperationsRequest(**wanted), **self.options)

    def cancel(self, name: str) -> None:
        self.operations.CancelOperation(operations_pb2.CancelOperationRequest(name=name), **self.options)

    def delete(self, name: str) -> None:
        self.operations.DeleteOperation(operations_pb2.DeleteOperationRequest(name=name), **self.options)


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        yield channel


@pytest.fixture
def ann(channel: grpc.Channel) -> Caller:
    return Caller(channel, "ann")


def add_sub(value: float = 1.0, rows: int = 1) -> bytes:
    inputs = [grpcclient.InferInput(name, [rows, 16], "FP32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.full((rows, 16), value, np.float32))
    return _serialized("add_sub", inputs)


def slow(value: int, seconds: float) -> bytes:
    inputs = [grpcclient.InferInput("SECONDS", [1], "FP32"), grpcclient.InferInput("VALUE", [1], "INT64")]
    inputs[0].set_data_from_numpy(np.array([seconds], np.float32))
    inputs[1].set_data_from_numpy(np.array([value], np.int64))
    return _serialized("slow", inputs)


def _serialized(model: str, inputs: Sequence[grpcclient.InferInput]) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    for each in inputs:
        request.inputs.append(each._get_tensor())
        request.raw_input_contents.append(each._get_content())
    return bytes(request.SerializeToString())


def metadata_of(operation: operations_pb2.Operation) -> Any:
    return _unpacked(operation.metadata, "trioton.JobMetadata")


def _unpacked(packed: any_pb2.Any, full_name: str) -> Any:
    assert packed.type_url == f"type.googleapis.com/{full_name}"
    return message_class(full_name).FromString(packed.value)


def sums_of(operation: operations_pb2.Operation) -> Any:
    response = service_pb2.ModelInferResponse()
    assert operation.response.Unpack(response)
    return grpcclient.InferResult(response).as_numpy("OUTPUT0")


def code_of(call: Any, *arguments: Any, **named: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **named)
    return caught.value.code()


@pytest.mark.parametrize("rows", [1, 4])
def test_a_job_of_one_request(ann: Caller, rows: int) -> None:
    made = ann.create([add_sub(2.0, rows)], metadata={"a": "ä"}, timeout={"seconds": 500})
    assert made.name.startswith("operations/job_")
    done = ann.wait(made.name)
    assert (done.done, done.WhichOneof("result")) == (True, "response")
    assert sums_of(done).tolist() == [[4.0] * 16] * rows
    metadata = metadata_of(done)
    assert (metadata.state, metadata.counts.succeeded, metadata.model_name, dict(metadata.metadata)) == (
        3,
        1,
        "add_sub",
        {"a": "ä"},
    )
    assert metadata.create_time.seconds <= metadata.start_time.seconds <= metadata.end_time.seconds
    assert abs(metadata.expire_time.seconds - metadata.create_time.seconds - 500) <= 1
    assert ann.get(made.name) == done


def test_a_job_of_several_and_one_that_fails_in_part(ann: Caller) -> None:
    bad = service_pb2.ModelInferRequest(model_name="add_sub").SerializeToString()
    made = ann.create([add_sub(1.0), bad, add_sub(3.0)])
    done = ann.wait(made.name)
    assert _unpacked(done.response, "trioton.JobResult").counts.succeeded == 2
    first, second, third = ann.results(made.name)
    assert [each.index for each in (first, second, third)] == [0, 1, 2]
    assert [each.custom_id for each in (first, second, third)] == ["number 0", "number 1", "number 2"]
    assert [each.state for each in (first, second, third)] == [3, 4, 3]
    assert second.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "expected" in second.error.message
    (response,) = third.responses
    result = grpcclient.InferResult(service_pb2.ModelInferResponse.FromString(response.SerializeToString()))
    assert result.as_numpy("OUTPUT0").tolist() == [[6.0] * 16]


def test_a_job_that_fails_is_cancelled_or_expires(ann: Caller) -> None:
    bad = service_pb2.ModelInferRequest(model_name="add_sub").SerializeToString()
    failed = ann.wait(ann.create([bad]).name)
    assert (failed.done, failed.error.code) == (True, grpc.StatusCode.INVALID_ARGUMENT.value[0])
    running = ann.create([slow(1, 600.0)])
    assert not ann.wait(running.name, 0).done
    ann.cancel(running.name)
    cancelled = ann.wait(running.name)
    assert cancelled.error.code == grpc.StatusCode.CANCELLED.value[0]
    late = ann.create([slow(1, 600.0)], timeout={"nanos": 200_000_000})
    assert ann.wait(late.name).error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


def test_operations_are_listed_in_pages_and_by_conditions(ann: Caller) -> None:
    names = [ann.create([add_sub()]).name for _ in range(3)]
    for name in names:
        ann.wait(name)
    running = ann.create([slow(1, 600.0)])
    assert eventually(lambda: [each.name for each in ann.list(filter="state = running").operations] == [running.name])
    first = ann.list(name="operations", page_size=2)
    assert [each.name for each in first.operations] == [running.name, names[2]]
    second = ann.list(page_size=2, page_token=first.next_page_token)
    assert [each.name for each in second.operations] == [names[1], names[0]]
    found = ann.list(filter='done=true AND model="add_sub"', page_size=100)
    assert set(names) <= {each.name for each in found.operations}
    assert all(each.done and each.HasField("response") for each in found.operations if each.name in names)
    ann.delete(running.name)
    assert code_of(ann.get, running.name) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "wanted",
    [{"filter": "a = b"}, {"filter": "done = maybe"}, {"filter": "x" * 10_000}, {"page_size": -1}, {"name": "jobs"}],
)
def test_lists_that_are_refused(ann: Caller, wanted: dict[str, Any]) -> None:
    assert code_of(ann.list, **wanted) is grpc.StatusCode.INVALID_ARGUMENT


def test_others_see_nothing(server: ServerProcess, channel: grpc.Channel, ann: Caller) -> None:
    bob, name = Caller(channel, "bob"), ann.create([slow(1, 600.0)]).name
    for call in (bob.get, bob.wait, bob.cancel, bob.delete, bob.results):
        assert code_of(call, name) is grpc.StatusCode.NOT_FOUND
    assert not bob.list().operations
    stranger = Caller(channel, "nobody")
    for refused in (stranger.get, stranger.wait, stranger.results):
        assert code_of(refused, name) is grpc.StatusCode.UNAUTHENTICATED
    assert code_of(stranger.list) is grpc.StatusCode.UNAUTHENTICATED
    over_http = JobClient(server.addresses["http"], "ann-0123456789abcdef")
    assert over_http.call("POST", f"/v2/jobs/{name.removeprefix('operations/')}/cancel").status == 200
    assert ann.wait(name).error.code == grpc.StatusCode.CANCELLED.value[0]


@pytest.mark.parametrize("name", ["", "job_1", "operations/", "operations/job_none", "jobs/job_1", "x" * 10_000])
def test_names_of_nothing(ann: Caller, name: str) -> None:
    for call in (ann.get, ann.wait, ann.cancel, ann.delete, ann.results):
        assert code_of(call, name) is grpc.StatusCode.NOT_FOUND


def test_the_same_request_id_gives_the_same_operation(ann: Caller) -> None:
    made = ann.create([add_sub()], request_id="k")
    assert ann.create([add_sub()], request_id="k").name == made.name
    assert code_of(ann.create, [add_sub(7.0)], request_id="k") is grpc.StatusCode.INVALID_ARGUMENT


def test_jobs_that_are_refused(ann: Caller) -> None:
    sequence = service_pb2.ModelInferRequest(model_name="add_sub")
    sequence.parameters["sequence_id"].int64_param = 7
    shared = service_pb2.ModelInferRequest.FromString(add_sub())
    shared.outputs.add(name="OUTPUT0").parameters["shared_memory_region"].string_param = "r"
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for requests, more, code in (
        ([], {}, invalid),
        ([sequence.SerializeToString()], {}, invalid),
        ([shared.SerializeToString()], {}, invalid),
        ([service_pb2.ModelInferRequest(model_name="unknown").SerializeToString()], {}, grpc.StatusCode.NOT_FOUND),
        ([add_sub()], {"timeout": {"seconds": -1}}, invalid),
        ([add_sub()], {"metadata": {"a": "x" * 513}}, invalid),
        ([add_sub()], {"request_id": "x" * 513}, invalid),
        ([add_sub()], {"webhook": {"url": "https://a/", "events": ["job.queued"]}}, invalid),
        ([add_sub()], {"webhook": {"url": "https://a/"}}, grpc.StatusCode.UNIMPLEMENTED),
    ):
        assert code_of(ann.create, requests, **more) is code


def test_each_request_of_a_list_costs_one(channel: grpc.Channel) -> None:
    eve = Caller(channel, "eve")
    assert eve.wait(eve.create([add_sub()] * 3).name).done
    assert code_of(eve.create, [add_sub()]) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_very_many_requests(ann: Caller) -> None:
    """More than the reader of plain messages takes."""
    made = ann.create([slow(number, 0.0) for number in range(5000)])
    assert metadata_of(made).counts.total == 5000
    ann.cancel(made.name)
    assert ann.wait(made.name).done


def test_without_a_store_there_are_none(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    with (
        ServerProcess(repository=tmp_path / "models") as server,
        grpc.insecure_channel(server.addresses["grpc"]) as channel,
    ):
        caller = Caller(channel, "ann")
        for call in (caller.list, lambda: caller.get("operations/job_1"), lambda: caller.create([add_sub()])):
            assert code_of(call) is grpc.StatusCode.UNIMPLEMENTED
