"""What the handlers of jobs have in common: the server's jobs, whose they are, and how they are answered."""

from __future__ import annotations

from protocol.errors import Unsupported
from protocol.http.codec.jobs import Preferences, preferences
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Headers, Reply, json_reply
from protocol.jobs.job import Job
from protocol.jobs.job_json import job_json
from protocol.jobs.service import Jobs

# Until a client asks again.
RETRY_AFTER = (b"retry-after", b"1")


def jobs_of(request: HttpRequest) -> Jobs:
    """Raises Unsupported where the server takes none, Unavailable where it takes none yet."""
    request.services.keeping.check()
    jobs = request.services.jobs
    if jobs is None:
        raise Unsupported("jobs need a place where they are kept: start the server with --jobs-store=<folder>")
    return jobs


def preferences_of(request: HttpRequest) -> Preferences:
    return preferences(request.sent_headers)


def location(job: Job) -> tuple[bytes, bytes]:
    return b"location", f"/v2/jobs/{job.id}".encode()


def applied(prefers: Preferences) -> Headers:
    """That the preferences were followed, as far as there were any."""
    if not prefers.is_async and prefers.wait is None:
        return ()
    return ((b"preference-applied", prefers.applied if prefers.is_async else b"wait=%g" % (prefers.wait or 0)),)


def job_reply(job: Job, status: int = 200, headers: Headers = ()) -> Reply:
    reply = json_reply(job_json(job), status)
    more = () if job.state.is_ended else (RETRY_AFTER,)
    reply.headers = (*reply.headers, *more, *headers)
    return reply
