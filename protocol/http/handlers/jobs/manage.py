"""Handlers that look at jobs, cancel and remove them; each caller sees its own."""

from __future__ import annotations

from protocol.http.codec.jobs import page_json, page_of
from protocol.http.codec.query import read_query
from protocol.http.exchange import HttpRequest
from protocol.http.handlers.jobs.call import applied, job_reply, jobs_of, preferences_of
from protocol.http.reply import Reply, json_reply


async def list_jobs(request: HttpRequest) -> Reply:
    """A page of the caller's jobs, the newest first: those in the states and of the model that the query names."""
    jobs = jobs_of(request)
    page = page_of(read_query(request.query))
    found = await jobs.jobs(request.caller, page.which, page.after, page.limit)
    return json_reply(page_json(found, page.limit))


async def job_status(request: HttpRequest) -> Reply:
    """A job as it is; with `Prefer: wait=…` as soon as it has ended, or after that time."""
    jobs, owner, job_id = jobs_of(request), request.caller, request.path_parameters["job_id"]
    prefers = preferences_of(request)
    if prefers.wait is None:
        return job_reply(await jobs.find(owner, job_id))
    return job_reply(await jobs.wait(owner, job_id, prefers.wait), headers=applied(prefers))


async def cancel_job(request: HttpRequest) -> Reply:
    """The job as it is then; one that has ended stays as it is."""
    return job_reply(await jobs_of(request).cancel(request.caller, request.path_parameters["job_id"]))


async def remove_job(request: HttpRequest) -> Reply:
    """One that has not ended is cancelled first."""
    job_id = request.path_parameters["job_id"]
    await jobs_of(request).remove(request.caller, job_id)
    return json_reply({"id": job_id, "object": "job", "deleted": True})
