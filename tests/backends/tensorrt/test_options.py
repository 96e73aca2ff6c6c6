"""Parameters, backend settings and optimisation fields."""

from __future__ import annotations

import pytest

from backends.tensorrt.options import TensorRTOptions, dla_core, read_options
from protocol.errors import InvalidArgument, ServerError, Unsupported
from repository.model_config import SecondaryDevice
from repository.pbtxt import parse_pbtxt


def options(text: str = "", **settings: str) -> TensorRTOptions:
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    return read_options(parse_pbtxt(f'name: "m" {text}', source="test"), given)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


STRATEGY = "execution_context_allocation_strategy"


def test_the_defaults() -> None:
    found = options()
    assert found == TensorRTOptions()
    assert (found.allocation_strategy, found.is_version_compatible, found.plugins) == ("STATIC", False, ())
    assert found.stream_priority == 0


def test_the_strategy() -> None:
    assert options(parameter(STRATEGY, "ON_PROFILE_CHANGE")).allocation_strategy == "ON_PROFILE_CHANGE"
    with pytest.raises(InvalidArgument) as caught:
        options(parameter(STRATEGY, "USER"))
    assert caught.value.message == (
        "Invalid value for 'execution_context_allocation_strategy': 'USER' for model instance 'm'. Supported values "
        "are 'STATIC' and 'ON_PROFILE_CHANGE'."
    )


def test_backend_settings() -> None:
    found = options(plugins="/a.so;/b.so;", version_compatible="on", execution_policy="BLOCKING")
    assert found.plugins == ("/a.so", "/b.so")
    assert found.is_version_compatible


@pytest.mark.parametrize(
    ("text", "settings", "kind", "says"),
    [
        (
            "",
            {"version_compatible": "maybe"},
            InvalidArgument,
            "backend-config 'version-compatible': failed to convert",
        ),
        ("", {"coalesce_request_input": "2"}, InvalidArgument, "backend-config 'coalesce-request-input': failed to"),
        ("", {"execution_policy": "FAST"}, InvalidArgument, "expected DEVICE_BLOCKING or BLOCKING, got 'FAST'"),
        (parameter("enable_multi_device", "1"), {}, Unsupported, "engines over several GPUs are not supported"),
        (parameter("enable_multi_device", "x"), {}, InvalidArgument, "parameter 'enable_multi_device': failed to"),
    ],
)
def test_values_that_are_none(text: str, settings: dict[str, str], kind: type[ServerError], says: str) -> None:
    with pytest.raises(kind) as caught:
        options(text, **settings)
    assert says in caught.value.message
    assert "'m'" in caught.value.message


@pytest.mark.parametrize(("priority", "is_first"), [("PRIORITY_MAX", True), ("PRIORITY_MIN", False)])
def test_priority_is_that_of_the_stream(priority: str, is_first: bool) -> None:
    assert (options(f"optimization {{ priority: {priority} }}").stream_priority < 0) is is_first


def test_a_dla_core_is_the_only_secondary_device() -> None:
    assert dla_core((), instance="m_0_0", model="m") is None
    assert dla_core((SecondaryDevice(device_id=1),), instance="m_0_0", model="m") == 1
    with pytest.raises(InvalidArgument, match="m_0_0 of model m must have either zero or or one secondary devices"):
        dla_core((SecondaryDevice(), SecondaryDevice()), instance="m_0_0", model="m")
