"""What the calls about jobs have in common: the server's jobs, whose they are, and how an operation is sent."""

from __future__ import annotations

from protocol.errors import Unsupported
from protocol.grpc.call.stream import Stream
from protocol.grpc.services.operation_messages import has_one_result, operation, with_response
from protocol.jobs.job import Job
from protocol.jobs.service import Jobs
from protocol.jobs.states import JobState
from protocol.services import EdgeServices


def jobs_of(services: EdgeServices) -> Jobs:
    """Raises Unsupported where the server takes none, Unavailable where it takes none yet."""
    services.keeping.check()
    if services.jobs is None:
        raise Unsupported("jobs need a place where they are kept: start the server with --jobs-store=<folder>")
    return services.jobs


def owner_of(services: EdgeServices, stream: Stream) -> str:
    """Whom the jobs of this caller belong to."""
    return services.access.caller(stream.header)


async def send_operation(stream: Stream, jobs: Jobs, job: Job) -> None:
    """The operation of a job; that of one request with its response, where there is one."""
    made = operation(job)
    if job.state is not JobState.SUCCEEDED or not has_one_result(job):
        await stream.send_message(made.SerializeToString())
        return
    (item,) = await jobs.items(job.id, 0, 1, results=True)
    assert item.result is not None
    await stream.send_message(with_response(made, item.result))
