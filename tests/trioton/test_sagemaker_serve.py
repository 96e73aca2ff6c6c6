"""SageMaker's `serve`: which command line it makes of a container's variables and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.cli import settings_from
from trioton.sagemaker_serve import CannotServe, serve_words


def add_model(models: Path, name: str) -> None:
    (models / name / "1").mkdir(parents=True)


def test_the_only_model_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "resnet")
    (tmp_path / ".aws").mkdir()
    words = serve_words({}, tmp_path)
    assert capsys.readouterr().err == "WARNING: No SAGEMAKER_TRITON_DEFAULT_MODEL_NAME provided.\n"
    assert words == [
        f"--model-repository={tmp_path}",
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--model-control-mode=explicit",
        "--sagemaker-ping-mode=ready",
        "--sagemaker-inference-type=infer",
        "--load-model=resnet",
        "--sagemaker-default-model=resnet",
        "--model-namespacing=true",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]
    settings = settings_from(words, {})
    assert list(settings.services()) == ["sagemaker"]
    assert settings.load_model == ("resnet",)


def test_one_of_several_models_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "b")
    words = serve_words({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "b"}, tmp_path)
    assert {"--load-model=b", "--sagemaker-default-model=b"} <= set(words)
    assert capsys.readouterr().err == ""


def test_many_models_are_sagemakers_to_load(tmp_path: Path) -> None:
    words = serve_words({"SAGEMAKER_MULTI_MODEL": "true"}, tmp_path / "nowhere")
    assert words[0] == "--model-repository=/tmp/sagemaker"
    assert "--sagemaker-ping-mode=live" in words
    assert not any(word.startswith("--load-model") for word in words)


@pytest.mark.parametrize("is_multi", ["true", "false"])
def test_the_ping_mode_may_be_chosen(tmp_path: Path, is_multi: str) -> None:
    add_model(tmp_path, "m")
    for mode in ("ready", "live"):
        environment = {"SAGEMAKER_TRITON_OVERRIDE_PING_MODE": mode, "SAGEMAKER_MULTI_MODEL": is_multi}
        assert f"--sagemaker-ping-mode={mode}" in serve_words(environment, tmp_path)


def test_variables_are_flags(tmp_path: Path) -> None:
    add_model(tmp_path, "m")
    environment = {
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate",
        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING": "false",
        "SAGEMAKER_BIND_TO_PORT": "8081",
        "SAGEMAKER_SAFE_PORT_RANGE": "9000-9009",
        "SAGEMAKER_TRITON_ALLOW_GRPC": "true",
        "SAGEMAKER_TRITON_GRPC_PORT": "9001",
        "SAGEMAKER_TRITON_ALLOW_METRICS": "true",
        "SAGEMAKER_TRITON_METRICS_PORT": "9002",
        "SAGEMAKER_TRITON_THREAD_COUNT": "4",
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": "2",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "true",
        "SAGEMAKER_TRITON_LOG_INFO": "false",
        "SAGEMAKER_TRITON_LOG_WARNING": "false",
        "SAGEMAKER_TRITON_LOG_ERROR": "true",
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": "16777216",
        "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE": "1048576",
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT": "0.8",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--exit-on-error=false --id='a name'",
    }
    words = serve_words(environment, tmp_path, gpus=2)
    assert [w for w in words if "gpu" in w] == ["--model-load-gpu-limit=0:0.8", "--model-load-gpu-limit=1:0.8"]
    settings = settings_from([word for word in words if "gpu" not in word], {})
    assert settings.services() == {
        "grpc": ("0.0.0.0", 9001),
        "sagemaker": ("0.0.0.0", 8081),
        "metrics": ("0.0.0.0", 9002),
    }
    assert settings.sagemaker().inference_type == "generate"
    assert (settings.model_namespacing, settings.log_verbose, settings.log_info) == (False, 1, False)
    assert (settings.exit_on_error, settings.id) == (False, "a name")
    assert [(each.backend, each.key, each.value) for each in settings.backend_config] == [
        ("python", "shm-default-byte-size", "16777216"),
        ("python", "shm-growth-byte-size", "1048576"),
    ]


@pytest.mark.parametrize(
    ("models", "environment", "text"),
    [
        ([], {}, "ERROR: No model found in model repository."),
        (["a", "b"], {}, "ERROR: More than 1 model directory found in model repository."),
        (
            ["a"],
            {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "b"},
            "ERROR: Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME b does not exist",
        ),
        (["a"], {"SAGEMAKER_TRITON_INFERENCE_TYPE": "x"}, "ERROR: Invalid SAGEMAKER_TRITON_INFERENCE_TYPE 'x'"),
        (["a", "config.pbtxt"], {}, "ERROR: Incorrect directory structure."),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, models: list[str], environment: dict[str, str], text: str) -> None:
    for name in models:
        if name == "config.pbtxt":
            (tmp_path / name).touch()
        else:
            add_model(tmp_path, name)
    with pytest.raises(CannotServe) as raised:
        serve_words(environment, tmp_path)
    assert str(raised.value).splitlines()[0] == text
