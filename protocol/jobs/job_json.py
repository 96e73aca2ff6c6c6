"""Jobs as JSON, as clients see them: in answers, in events and in webhooks. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.jobs.job import Job
from protocol.messages import LATEST_VERSION


def job_json(job: Job) -> dict[str, Any]:
    """A job as clients see it."""
    counts = job.counts
    body: dict[str, Any] = {
        "id": job.id,
        "object": "job",
        "state": job.state,
        "counts": {
            "total": counts.total,
            **{name: getattr(counts, name) for name in counts.__dataclass_fields__},
        },
        "created_at": job.created,
        "expires_at": job.deadline,
        "bytes": job.byte_size,
    }
    if job.model:
        body["model_name"] = job.model
        if job.version != LATEST_VERSION:
            body["model_version"] = str(job.version)
    if job.started:
        body["started_at"] = job.started
    if job.ended:
        body["ended_at"] = job.ended
    if job.error is not None:
        body["error"] = {"kind": job.error.kind, "message": job.error.message}
    if job.metadata:
        body["metadata"] = dict(job.metadata)
    if job.source is not None:
        body["input"] = msgspec.to_builtins(job.source.input)
        body["output"] = {**msgspec.to_builtins(job.source.output), "rows": job.written}
    return body
