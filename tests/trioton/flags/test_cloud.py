"""The flags of SageMaker's and Vertex AI's endpoints, and the platforms' variables that stand for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.http.cloud.sagemaker import SageMakerSettings
from protocol.http.cloud.vertex_ai import VertexAISettings
from trioton.cli import settings_from
from trioton.flags.fields import UsageError
from trioton.settings import Settings

REPOSITORY = "--model-repository=/a"
VERTEX = {"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}


def make(**flags: Any) -> Settings:
    return Settings(model_repository=(Path("models"),), **flags)


def test_neither_is_served_unless_asked_for() -> None:
    assert list(make().services()) == ["grpc", "http", "metrics"]


def test_the_defaults_are_those_of_the_endpoint() -> None:
    assert make().sagemaker() == SageMakerSettings()


def test_sagemaker_has_a_port_of_its_own_at_all_addresses() -> None:
    settings = settings_from([REPOSITORY, "--allow-sagemaker", "--http-address=127.0.0.1"], {})
    assert settings.services()["sagemaker"] == ("0.0.0.0", 8080)
    with pytest.raises(UsageError, match="--http-port and --sagemaker-port are both 8000"):
        make(allow_sagemaker=True, sagemaker_port=8000)


def test_sagemaker_is_configured_by_variables() -> None:
    environment = {
        "SAGEMAKER_TRITON_PING_MODE": "live",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
    }
    made = settings_from([REPOSITORY], environment).sagemaker()
    assert made == SageMakerSettings(pings_ready=False, default_model="resnet", inference_type="generate_stream")
    flags = ["--sagemaker-ping-mode=ready", "--sagemaker-default-model=m", "--sagemaker-inference-type=infer"]
    assert settings_from([REPOSITORY, *flags], environment).sagemaker() == SageMakerSettings(default_model="m")
    own = {"TRIOTON_SAGEMAKER_DEFAULT_MODEL": "own"}
    assert settings_from([REPOSITORY], {**environment, **own}).sagemaker_default_model == "own"


def test_a_file_wins_over_the_platforms_variables(tmp_path: Path) -> None:
    file = tmp_path / "trioton.toml"
    file.write_text('sagemaker-ping-mode = "ready"\n')
    settings = settings_from([REPOSITORY, f"--config={file}"], {"SAGEMAKER_TRITON_PING_MODE": "live"})
    assert settings.sagemaker_ping_mode == "ready"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UsageError, match="SAGEMAKER_TRITON_PING_MODE: expected ready or live, got 'maybe'"):
        settings_from([REPOSITORY], {"SAGEMAKER_TRITON_PING_MODE": "maybe"})


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "HTTP requests at port 8000"),
        (["--http-port=8081"], "GRPC requests at port 8001"),
        (["--http-port=8081", "--grpc-port=9000"], "metrics requests at port 8002"),
        (
            ["--http-port=8081", "--grpc-port=9000", "--allow-metrics=false", "--openai-port=9001"],
            "OpenAI .* port 9001",
        ),
    ],
)
def test_ports_outside_the_safe_range(flags: list[str], text: str) -> None:
    words = [REPOSITORY, "--allow-sagemaker", "--sagemaker-safe-port-range=8081-9000", *flags]
    expected = rf"The server cannot listen to {text}.*, allowed port range is \[8081, 9000\]"
    with pytest.raises(UsageError, match=expected.replace(".*, ", ", ")):
        settings_from(words, {})


def test_the_safe_range_is_not_sagemakers_own() -> None:
    flags = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
    settings = settings_from([REPOSITORY, "--allow-sagemaker", "--sagemaker-safe-port-range=9000-9001", *flags], {})
    assert settings.services() == {"sagemaker": ("0.0.0.0", 8080)}


def test_vertex_ai_is_configured_by_variables() -> None:
    environment = {**VERTEX, "AIP_HTTP_PORT": "7080", "AIP_STORAGE_URI": "gs://bucket/models"}
    settings = settings_from([], environment)
    assert settings.vertex_ai() == VertexAISettings("/predict", "/health")
    assert settings.services() == {"vertex-ai": ("0.0.0.0", 7080), "metrics": ("0.0.0.0", 8002)}
    assert [str(place) for place in settings.model_repository] == ["gs://bucket/models"]


def test_flags_win_over_vertex_ais_variables() -> None:
    flags = ["--allow-http=true", "--vertex-ai-port=8081", "--vertex-ai-default-model=m", REPOSITORY]
    environment = {**VERTEX, "AIP_HTTP_PORT": "7080", "AIP_STORAGE_URI": "gs://bucket/models"}
    settings = settings_from(flags, environment)
    assert list(settings.services()) == ["http", "vertex-ai", "metrics"]
    assert settings.services()["vertex-ai"] == ("0.0.0.0", 8081)
    assert settings.model_repository == (Path("/a"),)
    assert settings_from(["--allow-vertex-ai=false", REPOSITORY], environment).services().keys() == {"metrics"}


def test_another_mode_leaves_the_services_as_they_are() -> None:
    settings = settings_from([REPOSITORY], {**VERTEX, "AIP_MODE": "TRAINING"})
    assert list(settings.services()) == ["grpc", "http", "metrics"]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("AIP_PREDICT_ROUTE", "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        ("AIP_HEALTH_ROUTE", "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
    ],
)
def test_vertex_ai_needs_its_routes(missing: str, text: str) -> None:
    environment = {name: value for name, value in VERTEX.items() if name != missing}
    with pytest.raises(UsageError, match=f"failed to start Vertex AI service: Invalid argument - {text}"):
        settings_from([REPOSITORY], environment)


def test_routes_are_paths() -> None:
    with pytest.raises(UsageError, match="AIP_PREDICT_ROUTE: expected a path that begins with a slash, got 'predict'"):
        settings_from([REPOSITORY], {**VERTEX, "AIP_PREDICT_ROUTE": "predict"})
