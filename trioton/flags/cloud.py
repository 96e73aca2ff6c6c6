# ruff: noqa: RUF009 (the defaults are fields, made by functions)
"""Flags of the endpoints for Amazon SageMaker and Google Vertex AI. Part of `trioton.settings`.

Names are Triton's where it has the flag; the others stand for what it reads from environment variables alone
(`trioton.cloud_environment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.http.cloud.model_urls import DEFAULT_ROOT
from protocol.http.cloud.sagemaker import SageMakerSettings
from protocol.http.cloud.vertex_ai import VertexAISettings
from trioton.flags.edge import ANYWHERE, EdgeFlags
from trioton.flags.fields import PATH, STRING, UsageError, choice, filesystem_path, flag, port

CLOUD = "SageMaker and Vertex AI"
PORT = 8080
# The services as Triton's text about ports has them, in the order of its checks.
_SERVICES = {"http": "HTTP", "grpc": "GRPC", "openai": "OpenAI", "metrics": "metrics", "vertex-ai": "Vertex AI"}

_edge = EdgeFlags(CLOUD)


def port_range(text: str) -> tuple[int, int]:
    """`<first>-<last>`."""
    first, dash, last = text.partition("-")
    try:
        if not dash:
            raise ValueError
        return port(first), port(last)
    except ValueError:
        raise ValueError("expected <first port>-<last port>") from None


def route(text: str) -> str:
    """The path of a request. Raises ValueError."""
    if text and not text.startswith("/"):
        raise ValueError("expected a path that begins with a slash")
    return text


def _text(help: str) -> str:
    return flag("", str, group=CLOUD, metavar=STRING, help=help)


def _route(help: str) -> str:
    return flag("", route, group=CLOUD, metavar=PATH, help=help)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class CloudFlags:
    """The part of the settings that is about the endpoints of platforms."""

    allow_sagemaker: bool = _edge.on_off(False, "Serve what SageMaker expects of a container.")
    sagemaker_port: int = _edge.port(PORT)
    sagemaker_safe_port_range: tuple[int, int] | None = flag(
        None,
        port_range,
        group=CLOUD,
        metavar="<integer>-<integer>",
        help="The ports that all services but SageMaker's may listen on.",
    )
    sagemaker_ping_mode: str = flag(
        "ready",
        choice("ready", "live"),
        group=CLOUD,
        metavar="{ready,live}",
        help="What SageMaker's /ping tells; $SAGEMAKER_TRITON_PING_MODE.",
    )
    sagemaker_default_model: str = _text("The model of SageMaker's /invocations; $SAGEMAKER_TRITON_DEFAULT_MODEL_NAME.")
    sagemaker_inference_type: str = flag(
        "infer",
        choice("infer", "generate", "generate_stream"),
        group=CLOUD,
        metavar="{infer,generate,generate_stream}",
        help="What SageMaker's /invocations runs; $SAGEMAKER_TRITON_INFERENCE_TYPE.",
    )
    sagemaker_models_directory: Path = flag(
        DEFAULT_ROOT,
        filesystem_path,
        group=CLOUD,
        metavar=PATH,
        help="Where SageMaker puts the models that it has loaded on an endpoint with many.",
    )
    allow_vertex_ai: bool = _edge.on_off(
        False, "Serve what Vertex AI expects of a container; on where $AIP_MODE is PREDICTION."
    )
    vertex_ai_port: int = flag(
        PORT, port, group=CLOUD, metavar="<integer>", help="The port to listen on; $AIP_HTTP_PORT."
    )
    vertex_ai_default_model: str = _text("The model of predictions; where absent, the only one that is loaded.")
    vertex_ai_predict_route: str = _route("The path of predictions; $AIP_PREDICT_ROUTE.")
    vertex_ai_health_route: str = _route("The path of health; $AIP_HEALTH_ROUTE.")

    def cloud_services(self) -> dict[str, tuple[bool, str, int]]:
        """Whether each is asked for, and its address: all there are, as the platforms want it."""
        return {
            "sagemaker": (self.allow_sagemaker, ANYWHERE, self.sagemaker_port),
            "vertex-ai": (self.allow_vertex_ai, ANYWHERE, self.vertex_ai_port),
        }

    def check_cloud(self, services: Mapping[str, tuple[str, int]]) -> None:
        """Raises UsageError for routes that are missing, or a port of a service that it may not have."""
        if self.sagemaker_safe_port_range is not None:
            first, last = self.sagemaker_safe_port_range
            for word, name in _SERVICES.items():
                if word in services and not first <= (number := services[word][1]) <= last:
                    raise UsageError(
                        f"The server cannot listen to {name} requests at port {number}, allowed port range is "
                        f"[{first}, {last}]"
                    )
        if self.allow_vertex_ai:
            missing = "API_PREDICT_ROUTE" if not self.vertex_ai_predict_route else ""
            missing = missing or ("AIP_HEALTH_ROUTE" if not self.vertex_ai_health_route else "")
            if missing:
                raise UsageError(vertex_ai_failure(f"{missing} is not defined for Vertex AI endpoint"))

    def sagemaker(self) -> SageMakerSettings:
        return SageMakerSettings(
            pings_ready=self.sagemaker_ping_mode == "ready",
            default_model=self.sagemaker_default_model,
            inference_type=self.sagemaker_inference_type,
            root=self.sagemaker_models_directory,
        )

    def vertex_ai(self) -> VertexAISettings:
        return VertexAISettings(self.vertex_ai_predict_route, self.vertex_ai_health_route, self.vertex_ai_default_model)


def vertex_ai_failure(reason: str) -> str:
    """Why the server does not start, in Triton's words."""
    return f"failed to start Vertex AI service: Invalid argument - {reason}"
