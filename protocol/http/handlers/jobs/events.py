"""The events of a job, as a stream: its state, its progress, and parts of results as they come.

Nothing is kept for it: the first event is the job as it is, and who comes late or reads slowly misses what was between.
"""

from __future__ import annotations

import msgspec
import trio

from protocol.http.codec.job_rows import response_json
from protocol.http.exchange import BodyWriter, HttpRequest
from protocol.http.handlers.generate import EVENT_STREAM
from protocol.http.handlers.jobs.call import jobs_of
from protocol.jobs.job import Job
from protocol.jobs.job_json import job_json
from protocol.jobs.service import Follower

# Between two events of progress.
PROGRESS_SECONDS = 0.1
# A stream that is silent for longer is cut by proxies.
KEEP_ALIVE_SECONDS = 15.0


async def job_events(request: HttpRequest) -> None:
    """Until the job has ended, the client leaves, or the server stops."""
    jobs, owner, job_id = jobs_of(request), request.caller, request.path_parameters["job_id"]
    writer = request.writer
    with jobs.follow(job_id) as follower:
        job = await jobs.find(owner, job_id)
        await writer.start(200, EVENT_STREAM)
        await writer.send(_event("state", job_json(job)))
        while not (job.state.is_ended or follower.is_over):
            await _changed(follower, writer)
            for index, response in follower.partials():
                await writer.send(_event("partial", {"index": index, "response": response_json(response)}))
            shown, job = job, await jobs.find(owner, job_id)
            await _send_change(writer, shown, job)
            if not job.state.is_ended:
                await trio.sleep(PROGRESS_SECONDS)
    await writer.end()


async def _changed(follower: Follower, writer: BodyWriter) -> None:
    while True:
        with trio.move_on_after(KEEP_ALIVE_SECONDS):
            await follower.changed()
            return
        await writer.send(b": keep-alive\n\n")


async def _send_change(writer: BodyWriter, old: Job, new: Job) -> None:
    if new.state is not old.state:
        await writer.send(_event("state", job_json(new)))
    elif new.counts != old.counts:
        await writer.send(_event("progress", job_json(new)["counts"]))


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
