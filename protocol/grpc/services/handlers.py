"""The handler of every gRPC method, by its path."""

from __future__ import annotations

from grpclib.const import Handler

from protocol.grpc.access import guarded
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.services import health, jobs, operations, reflection, repository_control, request_control
from protocol.grpc.services.inference import InferenceService
from protocol.grpc.settings import GrpcSettings
from protocol.reactor.replies import Replies
from protocol.services import EdgeServices

SERVICES = (
    health.INFERENCE_SERVICE,
    request_control.SERVICE,
    repository_control.SERVICE,
    jobs.SERVICE,
    operations.SERVICE,
    health.SERVICE,
    *reflection.SERVICES,
)


def grpc_handlers(
    services: EdgeServices,
    settings: GrpcSettings,
    templates: RequestTemplates | None = None,
    replies: Replies | None = None,
) -> dict[str, Handler]:
    """The handlers, behind the access check. `templates` is the server's cache of request templates. Without
    `replies` every request of a stream takes a task."""
    handlers = {
        **InferenceService(
            services, settings, RequestTemplates() if templates is None else templates, replies
        ).__mapping__(),
        **request_control.RequestControlService(services.core).__mapping__(),
        **repository_control.RepositoryControlService(services.core).__mapping__(),
        **jobs.JobsService(services).__mapping__(),
        **operations.OperationsService(services).__mapping__(),
        **health.HealthService(services.core, SERVICES).__mapping__(),
        **reflection.ReflectionService(SERVICES).__mapping__(),
    }
    return guarded(handlers, services.access)
