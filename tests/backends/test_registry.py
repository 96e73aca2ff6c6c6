"""Finding backends by name: entry points, additions, and the sentences where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backends.interface import Backend
from backends.onnxruntime import OnnxRuntimeBackend
from backends.registry import BackendRegistry
from protocol.errors import Internal, InvalidArgument, Unavailable
from repository.backend_fields import fill_backend_fields
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig


def install(directory: Path, package: str, entry_point: str, module: str = "") -> None:
    """Put a distribution with one entry point (`name = module:attribute`) and that module where Python looks."""
    info = directory / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[trioton.backends]\n{entry_point}\n")
    if module:
        (directory / f"{package}.py").write_text(module)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_our_own_backends_are_found_by_entry_point() -> None:
    assert BackendRegistry().find("onnxruntime", model="m") is OnnxRuntimeBackend


def test_additions_need_no_entry_point_and_win_over_them() -> None:
    class Mine(OnnxRuntimeBackend):
        pass

    registry = BackendRegistry(extra={"mine": Mine, "onnxruntime": Mine})
    assert registry.find("mine", model="m") is Mine
    assert registry.find("onnxruntime", model="m") is Mine
    assert BackendRegistry().find("onnxruntime", model="m") is OnnxRuntimeBackend


def test_a_strangers_package_adds_a_backend_that_is_imported_when_asked_for(site: Path) -> None:
    module = "from backends.onnxruntime import OnnxRuntimeBackend\nclass B(OnnxRuntimeBackend):\n    pass\n"
    install(site, "stranger_one", "strange = stranger_one:B", module)
    registry = BackendRegistry()
    assert "strange" in registry.names
    assert "stranger_one" not in sys.modules
    assert issubclass(registry.find("strange", model="m"), Backend)


def test_an_unknown_backend_is_named_with_what_there_is_and_the_nearest() -> None:
    with pytest.raises(InvalidArgument) as caught:
        BackendRegistry().find("onnxruntme", model="m")
    text = caught.value.message
    assert text.startswith(
        "unable to find backend library for backend 'onnxruntme', try specifying runtime on the model configuration."
    )
    assert "Model 'm' asks for it" in text
    assert "onnxruntime" in text
    assert text.endswith("Did you mean 'onnxruntime'?")


def test_nothing_near_is_no_suggestion() -> None:
    with pytest.raises(InvalidArgument) as caught:
        BackendRegistry().find("qqqqq", model="m")
    assert "Did you mean" not in caught.value.message


@pytest.mark.parametrize("name", ["stateful", "tensorrtllm"])
def test_a_backend_of_triton_that_is_not_here_yet_is_said_to_be_so(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is a backend of Triton that this server does not have yet"):
        BackendRegistry().find(name, model="m")


@pytest.mark.parametrize(
    "config", [ModelConfig(platform="caffe2_netdef"), ModelConfig(backend="caffe2"), ModelConfig()]
)
async def test_a_model_of_caffe2_is_told_the_way_through_onnx(config: ModelConfig, tmp_path: Path) -> None:
    """However it says what it is: by its platform, its backend or the name of its file."""
    path = tmp_path / "m" / "1" / "model.netdef"
    path.parent.mkdir(parents=True)
    path.touch()
    filled = fill_backend_fields(config, ModelDirectory("m", tmp_path / "m", tmp_path))
    assert (filled.backend, filled.default_model_filename) == ("caffe2", "model.netdef")
    with pytest.raises(InvalidArgument, match=r"Model 'm' asks for it.* convert the model to ONNX, .*'onnxruntime'"):
        BackendRegistry().find(filled.backend, model="m")


def test_a_missing_framework_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("backends.onnxruntime")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # Python's own way of saying that an import must fail
    with pytest.raises(Unavailable) as caught:
        BackendRegistry().find("onnxruntime", model="ocr")
    assert caught.value.message.startswith(
        "model 'ocr' needs the onnxruntime package: pip install 'trioton[cpu]' (for NVIDIA GPUs "
        "'trioton[gpu]' in its place, or 'trioton[gpu-cuda12]' for CUDA 12)"
    )


def test_a_strangers_missing_framework_is_named(site: Path) -> None:
    install(site, "stranger_two", "strange = stranger_two:B", "import a_framework_that_is_not_there\n")
    with pytest.raises(Unavailable, match=r"needs the Python package 'a_framework_that_is_not_there'.*stranger_two:B"):
        BackendRegistry().find("strange", model="m")


def test_a_module_that_fails_when_imported_concerns_its_models_only(site: Path) -> None:
    install(site, "stranger_three", "strange = stranger_three:B", "1 / 0\n")
    with pytest.raises(Unavailable, match=r"stranger_three.* failed when it was imported: ZeroDivisionError"):
        BackendRegistry().find("strange", model="m")


def test_an_entry_point_that_is_no_backend_is_refused(site: Path) -> None:
    install(site, "stranger_four", "strange = stranger_four:B", "class B:\n    pass\n")
    with pytest.raises(Internal, match=r"is no subclass of trioton\.backends\.Backend"):
        BackendRegistry().find("strange", model="m")


def test_an_entry_point_without_its_attribute_is_refused(site: Path) -> None:
    install(site, "stranger_seven", "strange = stranger_seven:B", "\n")
    with pytest.raises(Unavailable, match="failed when it was imported: AttributeError"):
        BackendRegistry().find("strange", model="m")


def test_two_packages_with_one_name_are_refused_by_name(site: Path) -> None:
    install(site, "stranger_five", "strange = stranger_five:B")
    install(site, "stranger_six", "strange = stranger_six:B")
    with pytest.raises(InvalidArgument, match=r"offered more than once: stranger_five:B .*, stranger_six:B"):
        BackendRegistry().find("strange", model="m")
