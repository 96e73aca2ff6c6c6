"""TorchScript files: how arguments and results are called, strings, dictionaries, options, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple  # noqa: UP035 (TorchScript reads them)

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backends.interface import Backend
from backends.pytorch import PyTorchBackend
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError, Unavailable, Unsupported
from repository.model_config import InstanceKind
from tests.backends.helpers import answer, infer, loaded, objects, request_of, source_of, spec_of
from tests.backends.pytorch.torch_models import save_script

X = np.array([1, 2, 3], np.float32)
Y = np.array([10, 20, 30], np.float32)


def tensors(*, inputs: str = "X", outputs: str = "Y", kind: str = "TYPE_FP32", dims: str = "[ -1 ]") -> str:
    """A configuration without a batch dimension; names stand with blanks between them."""
    entries = {
        "input": [f'{{ name: "{name}" data_type: {kind} dims: {dims} }}' for name in inputs.split()],
        "output": [f'{{ name: "{name}" data_type: {kind} dims: {dims} }}' for name in outputs.split()],
    }
    return 'backend: "pytorch"\n' + "\n".join(f"{which} [ {', '.join(found)} ]" for which, found in entries.items())


def parameter(key: str, value: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


async def run(folder: Path, config: str, *inputs: tuple[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    async with loaded(PyTorchBackend, spec_of(source_of(config, folder))) as backend:
        (response,) = await infer(backend, request_of(*inputs))
    return answer(response)


async def refused(folder: Path, config: str, kind: InstanceKind = InstanceKind.CPU) -> ServerError:
    with pytest.raises(ServerError) as caught:
        async with loaded(PyTorchBackend, spec_of(source_of(config, folder), kind=kind)):
            pass
    return caught.value


class Two(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        return left - right, left * right


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("right left", "A B"),  # arguments of forward, in any order; results in the configuration's
        ("right left", "B__1 A__0"),
        ("IN__1 IN__0", "A__0 B__1"),
        ("b__x a__y", "A B"),  # no convention fits: the configuration's order
    ],
)
async def test_arguments_are_found_by_name_then_by_index_then_by_order(
    inputs: str, outputs: str, tmp_path: Path
) -> None:
    save_script(Two(), tmp_path, "")
    first, second = inputs.split()
    is_order = first == "b__x"
    given = {first: X, second: Y} if is_order else {first: Y, second: X}
    found = await run(tmp_path, tensors(inputs=inputs, outputs=outputs), *given.items())
    difference, product = sorted(outputs.split(), key=lambda name: name[0])
    assert found[difference].tolist() == (X - Y).tolist()
    assert found[product].tolist() == (X * Y).tolist()


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ("left", "A", "configuration expects 1 inputs, model provides 2"),
        ("left right more", "A", "configuration expects 3 inputs, model provides 2"),
        ("IN__0 IN__2", "A", "refers to an input index which doesn't exist. This model has 2 inputs"),
        ("IN__0 ON__0", "A", "input 'IN__0' has the position 0, as another one"),
        ("left right", "A__2", "refers to an output index which doesn't exist. This model has 2 outputs"),
        ("left right", "A B C", "unexpected inference output 'C', allowed outputs are: OUTPUT__0, OUTPUT__1"),
    ],
)
async def test_names_that_lead_nowhere_are_refused(inputs: str, outputs: str, says: str, tmp_path: Path) -> None:
    save_script(Two(), tmp_path, "")
    error = await refused(tmp_path, tensors(inputs=inputs, outputs=outputs))
    assert isinstance(error, InvalidArgument)
    assert says in error.message
    assert "'m'" in error.message


async def test_a_name_that_the_model_lacks_beside_others_that_it_has_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Triton the order counts then, which is seldom meant."""
    save_script(Two(), tmp_path, "")
    found = await run(tmp_path, tensors(inputs="right wrong", outputs="A B"), ("right", X), ("wrong", Y))
    assert found["A"].tolist() == (X - Y).tolist()
    assert "model 'm': it has no input 'wrong', so its inputs are taken in the order" in caplog.text


async def test_a_dictionary_is_keyed_by_the_configurations_names(tmp_path: Path) -> None:
    class Keyed(torch.nn.Module):
        def forward(self, x: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:  # noqa: UP006
            return {"sum": x["a"] + x["b"], "difference": x["a"] - x["b"]}

    save_script(Keyed(), tmp_path, "")
    found = await run(tmp_path, tensors(inputs="b a", outputs="difference sum"), ("a", X), ("b", Y))
    assert found["sum"].tolist() == (X + Y).tolist()
    assert found["difference"].tolist() == (X - Y).tolist()


class Pair(NamedTuple):
    larger: torch.Tensor
    smaller: torch.Tensor


class Sorting(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Pair:
        return Pair(torch.maximum(a, b), torch.minimum(a, b))


async def test_fields_of_a_named_tuple_are_names_of_results(tmp_path: Path) -> None:
    save_script(Sorting(), tmp_path, "")
    found = await run(tmp_path, tensors(inputs="a b", outputs="smaller larger"), ("a", X), ("b", Y))
    assert found["smaller"].tolist() == X.tolist()


class Optionals(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor | None, z: torch.Tensor | None = None, scale: float = 2.0
    ) -> torch.Tensor:
        if y is not None:
            x = x + y
        if z is not None:
            x = x + 100 * z
        return x * scale


async def test_optional_arguments_may_be_left_out_of_configuration_and_requests(tmp_path: Path) -> None:
    save_script(Optionals(), tmp_path, "")
    config = tensors(inputs="x y z")
    for name in ("y", "z"):
        config = config.replace(f'"{name}"', f'"{name}" optional: true')
    async with loaded(PyTorchBackend, spec_of(source_of(config, tmp_path))) as backend:
        for given, expected in (
            ({"x": X}, X * 2),
            ({"x": X, "y": Y}, (X + Y) * 2),
            ({"x": X, "z": Y}, (X + 100 * Y) * 2),
            ({"x": X, "y": Y, "z": Y}, (X + Y + 100 * Y) * 2),
        ):
            (response,) = await infer(backend, request_of(*given.items()))
            assert answer(response)["Y"].tolist() == expected.tolist()
    assert (await run(tmp_path, tensors(inputs="x"), ("x", X)))["Y"].tolist() == (X * 2).tolist()
    save_script(Two(), tmp_path / "two", "")
    error = await refused(tmp_path / "two", tensors(inputs="left right").replace('"left"', '"left" optional: true'))
    assert "'optional' is set to true for input 'left'" in error.message


class Texts(torch.nn.Module):
    def forward(self, names: List[str], x: torch.Tensor) -> Tuple[List[str], torch.Tensor]:  # noqa: UP006
        return ["<" + name + ">" for name in names], x + len(names)


TEXTS = """
backend: "pytorch"
input [ { name: "names" data_type: TYPE_STRING dims: [ -1 ] }, { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "UP" data_type: TYPE_STRING dims: [ -1 ] }, { name: "COUNT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


async def test_strings_are_lists_of_one_dimension(tmp_path: Path) -> None:
    save_script(Texts(), tmp_path, "")
    found = await run(tmp_path, TEXTS, ("names", objects("é", b"a\0b", "")), ("x", X))
    assert found["UP"].tolist() == ["<é>".encode(), b"<a\0b>", b"<>"]
    assert found["COUNT"].tolist() == [4, 5, 6]
    assert (await run(tmp_path, TEXTS, ("names", objects()), ("x", X)))["UP"].tolist() == []
    error = await refused(tmp_path, TEXTS.replace("dims: [ -1 ] }, {", "dims: [ -1, 1 ] }, {", 1))
    assert "only supports 1 dimensional List of String as input for 'names' for model 'm'" in error.message
    error = await refused(tmp_path, TEXTS.replace("TYPE_STRING", "TYPE_INT8", 1))
    assert "expects datatype TYPE_INT8 for input 'names', model takes a List[str]" in error.message


async def test_bf16_and_unsigned_numbers_are_computed_with(tmp_path: Path) -> None:
    class Doubling(torch.nn.Module):
        def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803
            return X + X

    save_script(Doubling(), tmp_path, "")
    x = np.array([1.5, -2, 0.125]).astype(ml_dtypes.bfloat16)
    found = await run(tmp_path, tensors(kind="TYPE_BF16"), ("X", x))
    assert found["Y"].astype(np.float32).tolist() == [3, -4, 0.25]


async def test_a_model_may_write_to_its_inputs(tmp_path: Path) -> None:
    """They are its own: what the client sent, or has in shared memory, stays as it is."""

    class Writing(torch.nn.Module):
        def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803
            return X.mul_(2)

    save_script(Writing(), tmp_path, "")
    x = X.copy()
    assert (await run(tmp_path, tensors(), ("X", x)))["Y"].tolist() == [2, 4, 6]
    assert x.tolist() == X.tolist()


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803
        self.count += X.sum()  # type: ignore[operator]
        return self.count


async def test_an_answer_is_not_changed_by_what_the_model_does_next(tmp_path: Path) -> None:
    save_script(Counting(), tmp_path, "")
    async with loaded(PyTorchBackend, spec_of(source_of(tensors(), tmp_path))) as backend:
        (first,), (second,) = [await infer(backend, request_of(("X", X))) for _ in range(2)]
        assert backend.memory_usage()[0].byte_size == 4
    assert (answer(first)["Y"].tolist(), answer(second)["Y"].tolist()) == ([6], [12])
    assert backend.memory_usage() == ()


async def test_instances_may_share_one_module(tmp_path: Path) -> None:
    save_script(Counting(), tmp_path, "")
    for text, expected in (("true", [6, 12]), ("false", [6, 6])):
        source = source_of(tensors() + parameter("ENABLE_WEIGHT_SHARING", text), tmp_path)
        async with loaded(PyTorchBackend, spec_of(source)) as one, loaded(PyTorchBackend, spec_of(source)) as two:
            found = [answer((await infer(each, request_of(("X", X))))[0])["Y"].item() for each in (one, two)]
        assert found == expected


class Modes(torch.nn.Module):
    """Whether gradients could be computed, and in which precision a product is."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(3, 3)

    def forward(self, X: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: N803, UP006
        return torch.tensor([float(X.is_inference()), float(torch.is_grad_enabled())]), self.dense(X)


async def test_inference_mode_is_on_unless_it_is_turned_off(tmp_path: Path) -> None:
    save_script(Modes(), tmp_path, "")
    config = tensors(outputs="MODES DENSE")
    assert (await run(tmp_path, config, ("X", X)))["MODES"].tolist() == [1, 0]
    assert (await run(tmp_path, config + parameter("INFERENCE_MODE", "false"), ("X", X)))["MODES"].tolist() == [0, 1]


async def test_half_precision_on_request_comes_back_as_configured(tmp_path: Path) -> None:
    save_script(Modes(), tmp_path, "")
    config = tensors(outputs="MODES DENSE")
    whole = (await run(tmp_path, config, ("X", X)))["DENSE"]
    half = (await run(tmp_path, config + parameter("AUTOCAST_DTYPE", "BF16"), ("X", X)))["DENSE"]
    assert half.dtype == np.float32
    assert half.tolist() == half.astype(ml_dtypes.bfloat16).astype(np.float32).tolist()
    assert half.tolist() != whole.tolist()
    np.testing.assert_allclose(half, whole, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("INFERENCE_MODE", "maybe", "failed to convert 'maybe' to boolean"),
        ("ENABLE_NVFUSER", "maybe", "failed to convert 'maybe' to boolean"),
        ("INTRA_OP_THREAD_COUNT", "many", "failed to convert 'many' to integral number"),
        ("INTER_OP_THREAD_COUNT", "0", "expected a number of threads from 1 on, got '0'"),
        ("AUTOCAST_DTYPE", "FP8", "expected FP16 or BF16, got 'FP8'"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "[]", "expected a JSON object, got '[]'"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{", "expected a JSON object, got '{'"),
        (
            "TORCH_COMPILE_OPTIONAL_PARAMETERS",
            '{\\"model\\": 1}',
            "'model' is not an optional parameter for 'torch.compile'",
        ),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{}", "can be compiled, and 'model.pt' is of TorchScript"),
    ],
)
async def test_wrong_parameters_fail_the_load(key: str, value: str, says: str, tmp_path: Path) -> None:
    save_script(Counting(), tmp_path, "")
    error = await refused(tmp_path, tensors() + parameter(key, value))
    assert isinstance(error, InvalidArgument)
    assert says in error.message
    assert f"model 'm', parameter '{key}'" in error.message


@pytest.mark.parametrize(
    "given",
    [
        parameter("DISABLE_OPTIMIZED_EXECUTION", "true"),
        parameter("ENABLE_CACHE_CLEANING", "true"),
        parameter("CACHE_CLEANING_ENABLED", "true"),
        parameter("ENABLE_NVFUSER", "true"),
    ],
)
async def test_hints_are_taken(given: str, tmp_path: Path) -> None:
    save_script(Two(), tmp_path, "")
    found = await run(tmp_path, tensors(inputs="left right", outputs="A B") + given, ("left", X), ("right", Y))
    assert found["A"].tolist() == (X - Y).tolist()


# Failures -----------------------------------------------------------------------------------------------------------


class Picky(torch.nn.Module):
    def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803
        assert X.min() >= 0, "negative numbers"
        return X @ torch.ones(3, 3)


async def test_a_run_that_fails_says_why_and_concerns_its_request_alone(tmp_path: Path) -> None:
    config = "max_batch_size: 8\n" + tensors(dims="[ 3 ]")
    save_script(Picky(), tmp_path, "")
    async with loaded(PyTorchBackend, spec_of(source_of(config, tmp_path))) as backend:
        good, bad = request_of(("X", X[None])), request_of(("X", -X[None]))
        first, second, third = await infer(backend, good, bad, good)
    assert answer(first)["Y"].tolist() == answer(third)["Y"].tolist() == [[6, 6, 6]]
    assert isinstance(second, Internal)
    assert second.message.startswith("PyTorch execute failure: ")
    assert "negative numbers" in second.message
    assert "(model 'm')" in second.message


class Odd(torch.nn.Module):
    """Replies of kinds that no output can have."""

    def forward(self, X: torch.Tensor) -> Any:  # noqa: N803
        kind = int(X[0].item())
        if kind == 0:
            return 5
        if kind == 1:
            return (X, 5)
        if kind == 2:
            return X.to(torch.complex64)
        return X.to_sparse()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (0, "output must be of type Tensor or List[str], received int"),
        (1, "output at index 1 must be of type Tensor or List[str], received int"),
        (2, "the configuration expects TYPE_FP32, the model gave numpy dtype complex64"),
        (3, "output 'Y' is no dense tensor"),
    ],
)
async def test_results_that_are_no_outputs_are_told_apart(kind: int, says: str, tmp_path: Path) -> None:
    save_script(Odd(), tmp_path, "")
    with pytest.raises(Internal) as caught:
        await run(tmp_path, tensors(), ("X", np.array([kind], np.float32)))
    assert says in caught.value.message


async def test_a_scalar_is_one_element_without_batching_and_refused_with(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803
            return X.sum()

    save_script(Sum(), tmp_path, "")
    config = tensors().replace('"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 1 ]')
    assert (await run(tmp_path, config, ("X", X)))["Y"].tolist() == [6]
    with pytest.raises(Unsupported, match="output 'Y' is a scalar which is not supported"):
        await run(tmp_path, "max_batch_size: 4\n" + config, ("X", X[None]))


async def test_arguments_that_no_request_can_give_are_refused(tmp_path: Path) -> None:
    class Numbers(torch.nn.Module):
        def forward(self, X: torch.Tensor, times: int) -> torch.Tensor:  # noqa: N803
            return X * times

    class Dictionaries(torch.nn.Module):
        def forward(self, X: torch.Tensor, more: Dict[str, torch.Tensor]) -> torch.Tensor:  # noqa: N803, UP006
            return X * more["a"]

    save_script(Numbers(), tmp_path / "numbers", "")
    error = await refused(tmp_path / "numbers", tensors())
    assert "An input of type 'int' was detected in the model." in error.message
    save_script(Dictionaries(), tmp_path / "dictionaries", "")
    error = await refused(tmp_path / "dictionaries", tensors())
    assert "Multiple inputs of kind DictType were detected." in error.message


async def test_weights_without_a_program_are_told_from_broken_files(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "1" / "model.pt")
    error = await refused(tmp_path, tensors())
    assert isinstance(error, Internal)
    assert "holds weights without a program (torch.save)" in error.message


async def test_the_configuration_must_list_what_the_file_does_not_tell(tmp_path: Path) -> None:
    save_script(Two(), tmp_path, "")
    with pytest.raises(InvalidArgument) as caught:
        await PyTorchBackend.complete_config(source_of('backend: "pytorch"', tmp_path))
    assert caught.value.message == (
        "model 'm': model configuration must contain at least one input, none were specified. Files of TorchScript do "
        "not tell datatypes and shapes; its inputs are called left, right"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
async def test_a_gpu_instance_where_torch_sees_no_gpu_says_so(tmp_path: Path) -> None:
    save_script(Counting(), tmp_path, "")
    error = await refused(tmp_path, tensors(), InstanceKind.GPU)
    assert isinstance(error, Unavailable)
    assert "has KIND_GPU, but the installed torch" in error.message


NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"))


@pytest.mark.parametrize("kind", [InstanceKind.MODEL, pytest.param(InstanceKind.GPU, marks=NEEDS_GPU)])
async def test_a_model_computes_where_its_instance_is(kind: InstanceKind, tmp_path: Path) -> None:
    save_script(Two(), tmp_path, "")
    source = source_of(tensors(inputs="left right", outputs="A B"), tmp_path)
    async with loaded(PyTorchBackend, spec_of(source, kind=kind)) as backend:
        (response,) = await infer(backend, request_of(("left", X), ("right", Y)))
    assert answer(response)["A"].tolist() == (X - Y).tolist()


async def test_a_device_without_memory_fails_the_request_and_serves_on(tmp_path: Path) -> None:
    class Full(PyTorchBackend):
        is_full = True

        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            if self.is_full:
                self._program.run = raising  # type: ignore[union-attr, method-assign]
            return super().run(inputs)

    def raising(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")

    save_script(Two(), tmp_path, "")
    spec = spec_of(source_of(tensors(inputs="left right", outputs="A B"), tmp_path))
    async with loaded(Full, spec) as backend:
        (response,) = await infer(backend, request_of(("left", X), ("right", Y)))
        assert isinstance(response, Overloaded)
        assert "no memory left" in response.message
        assert isinstance(backend, Backend)
        Full.is_full = False
        del backend._program.run  # type: ignore[attr-defined]
        (response,) = await infer(backend, request_of(("left", X), ("right", Y)))
        assert answer(response)["A"].tolist() == (X - Y).tolist()


async def test_a_run_that_needs_more_memory_than_the_host_has_fails_alone(tmp_path: Path) -> None:
    class Repeat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum().expand(int(x.long()[0].item())).contiguous()

    save_script(Repeat(), tmp_path, "")
    async with loaded(PyTorchBackend, spec_of(source_of(tensors(), tmp_path))) as backend:
        (failure,) = await infer(backend, request_of(("X", np.array([1e15], np.float32))))
        (response,) = await infer(backend, request_of(("X", np.array([3], np.float32))))
    assert isinstance(failure, Overloaded)
    assert failure.message.startswith("PyTorch execute failure of model 'm': no memory left: ")
    assert answer(response)["Y"].tolist() == [3, 3, 3]
