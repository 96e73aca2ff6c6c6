"""Jobs as long-running operations: messages of `google.longrunning`, and those of `trioton` in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from protocol.errors import InvalidArgument, NotFound, ServerError
from protocol.grpc.codec.infer import encode_response
from protocol.grpc.codec.wire import field_start
from protocol.grpc.status import code_of_kind
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.payload import decode_responses
from protocol.jobs.states import JobState
from protocol.jobs.store import Item, JobFilter
from protocol.messages import LATEST_VERSION, Buffer
from protocol.proto import message_class

COLLECTION = "operations"
_TYPES = "type.googleapis.com/"
_RESPONSE, _VALUE, _RESPONSES = 5, 2, 5  # field numbers of an Operation, an Any, a JobItem
_CONDITION = re.compile(r'(done|state|model)\s*=\s*"?([^"\s]+)"?')
_MOST_FILTER = 1000


def job_id_of(name: str) -> str:
    """Raises NotFound: it is no operation's name."""
    collection, _, job_id = name.partition("/")
    if collection != COLLECTION or not job_id:
        raise NotFound(f"there is no operation '{name[:128]}'; expected {COLLECTION}/<id of a job>")
    return job_id


def has_one_result(job: Job) -> bool:
    """Whether that is the response of its operation, and not only how many there are."""
    return job.counts.total == 1 and job.source is None


def operation(job: Job, *, is_listed: bool = False) -> Any:
    """The operation of a job, whole but for the response where one is to be appended: unless it is listed, that is of a
    job which has succeeded and has one request."""
    made: Any = message_class("google.longrunning.Operation")()
    made.name = f"{COLLECTION}/{job.id}"
    _pack(made.metadata, _metadata(job))
    made.done = job.state.is_ended
    if job.state is JobState.SUCCEEDED:
        if is_listed or not has_one_result(job):
            _pack(made.response, message_class("trioton.JobResult")(counts=_counts(job.counts)))
    elif made.done:
        _set_error(made.error, _error_of(job))
    return made


def with_response(made: Any, result: Buffer) -> list[Buffer]:
    """A serialized operation in parts, with the result of the only request of its job. Tensors stay where they are."""
    responses = decode_responses(result)
    if len(responses) != 1:
        _pack(made.response, message_class("trioton.JobResult")(counts=_counts(Counts(succeeded=1))))
        return [made.SerializeToString()]
    value = encode_response(responses[0])
    wrapped = _appended(_type_url("inference.ModelInferResponse"), _VALUE, value)
    return _appended(made.SerializeToString(), _RESPONSE, wrapped)


def item_parts(item: Item) -> list[Buffer]:
    """A serialized JobItem in parts."""
    made: Any = message_class("trioton.JobItem")(
        index=item.index, custom_id=_text(item.custom_id), model_name=item.model, state=_state(item.state)
    )
    error = item.error
    parts: list[Buffer] = []
    try:
        for response in () if item.result is None else decode_responses(item.result):
            value = encode_response(response)
            parts += [field_start(_RESPONSES, sum(map(len, value))), *value]
    except ServerError as failure:  # that of this item, and not of those after it
        error, parts = ItemError(failure.kind, failure.message), []
    if error is not None:
        _set_error(made.error, error)
    return [made.SerializeToString(), *parts]


def read_filter(text: str) -> JobFilter:
    """`done = false`, `state = running`, `model = m`, or several of them with AND. Raises InvalidArgument."""
    states = frozenset(JobState)
    model = ""
    conditions = re.split(r"\s+AND\s+", text.strip()[:_MOST_FILTER]) if text.strip() else []
    for condition in conditions:
        match = _CONDITION.fullmatch(condition.strip())
        if match is None:
            raise _wrong_filter(condition)
        name, value = match.groups()
        if name == "model":
            model = value
        elif name == "done" and value in ("true", "false"):
            states &= {state for state in JobState if state.is_ended == (value == "true")}
        elif name == "state" and value.lower() in {*JobState}:
            states &= {JobState(value.lower())}
        else:
            raise _wrong_filter(condition)
    if not states:
        raise InvalidArgument("'filter': its conditions contradict each other")
    return JobFilter(frozenset() if len(states) == len(JobState) else states, model)


def _wrong_filter(condition: str) -> InvalidArgument:
    return InvalidArgument(
        f"'filter': expected done = true or false, state = {' or '.join(JobState)}, model = <name>, or several of them "
        f"with AND, got '{condition[:100]}'"
    )


def _metadata(job: Job) -> Any:
    made: Any = message_class("trioton.JobMetadata")(
        state=_state(job.state), counts=_counts(job.counts), model_name=job.model
    )
    if job.version != LATEST_VERSION:
        made.model_version = str(job.version)
    for name, seconds in (
        ("create_time", job.created),
        ("start_time", job.started),
        ("end_time", job.ended),
        ("expire_time", job.deadline),
    ):
        if seconds:
            moment = getattr(made, name)
            moment.seconds, moment.nanos = int(seconds), int(seconds % 1 * 1e9)
    for name, text in job.metadata.items():
        made.metadata[_text(name)] = _text(text)
    if job.error is not None:
        _set_error(made.last_error, job.error)
    return made


def _counts(counts: Counts) -> Any:
    names = counts.__dataclass_fields__
    return message_class("trioton.JobCounts")(total=counts.total, **{name: getattr(counts, name) for name in names})


def _state(state: JobState) -> str:
    return state.name


def _error_of(job: Job) -> ItemError:
    """Of one that has ended and has not succeeded."""
    if job.state is JobState.CANCELLED:
        return ItemError("CANCELLED", f"job '{job.id}' was cancelled")
    if job.state is JobState.EXPIRED:
        return ItemError("DEADLINE_EXCEEDED", f"job '{job.id}' has expired before it could end")
    return job.error or ItemError("UNKNOWN", f"job '{job.id}' has failed")


def _set_error(status: Any, error: ItemError) -> None:
    status.code = code_of_kind(error.kind).value
    status.message = _text(error.message)


def _text(text: str) -> str:
    """Lone surrogates have no encoding."""
    return text.encode("utf-8", "replace").decode()


def _pack(into: Any, message: Any) -> None:
    into.type_url = _TYPES + message.DESCRIPTOR.full_name
    into.value = message.SerializeToString()


def _type_url(full_name: str) -> bytes:
    serialized: bytes = message_class("google.protobuf.Any")(type_url=_TYPES + full_name).SerializeToString()
    return serialized


def _appended(message: bytes, number: int, value: Sequence[Buffer]) -> list[Buffer]:
    return [message, field_start(number, sum(map(len, value))), *value]
