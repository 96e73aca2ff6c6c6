"""Public: the interface of job stores, which keep the requests and results of jobs for the server.

An installed package offers a store by an entry point of the group `trioton.job_stores`, and `--jobs-store` names it,
with what is for the store itself behind it (`mine://host:6379`):

    [project.entry-points."trioton.job_stores"]
    mine = "my_package.my_module:make_store"

`make_store(place, limits)` gives an object with the methods of `JobStore`, which the server calls on its Trio loop. One
that several servers use at the same time has those of `SharedJobStore`, too.
"""

from __future__ import annotations

from protocol.errors import InsufficientStorage, InvalidArgument, NotFound, Overloaded
from protocol.jobs.batches.batch import BATCH_KIND, Batch, BatchState, LineCounts, LineError, TokenUsage
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.batches.store import BatchStore, Change, FileWriter
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.source import DataFormat, DataPlace, JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import (
    Claim,
    IdempotencyMismatch,
    Item,
    JobChange,
    JobFilter,
    JobStore,
    Limits,
    NewItem,
    NewJob,
    Outcome,
    SharedJobStore,
    StoreFigures,
    UnusableStore,
)
from protocol.jobs.webhook import Delivery, DeliveryRoom, Webhook

__all__ = [
    "BATCH_KIND",
    "Batch",
    "BatchState",
    "BatchStore",
    "Change",
    "Claim",
    "Counts",
    "DataFormat",
    "DataPlace",
    "Delivery",
    "DeliveryRoom",
    "FileWriter",
    "IdempotencyMismatch",
    "InsufficientStorage",
    "InvalidArgument",
    "Item",
    "ItemError",
    "Job",
    "JobChange",
    "JobFilter",
    "JobSource",
    "JobState",
    "JobStore",
    "Limits",
    "LineCounts",
    "LineError",
    "NewItem",
    "NewJob",
    "NotFound",
    "Outcome",
    "Overloaded",
    "Position",
    "Progress",
    "SharedJobStore",
    "StoreFigures",
    "StoredFile",
    "TokenUsage",
    "UnusableStore",
    "Webhook",
]
