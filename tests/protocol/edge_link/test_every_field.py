"""Every field of a request, as the core has it by a link and without one: a new one has to be thought of here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from protocol.core import InferenceCore, Respond
from protocol.datatypes import DataType
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.observed import NotedCall
from protocol.edge_link.requests import can_cross
from protocol.errors import InvalidArgument
from protocol.gen_ai import UNRECORDED, GenAiCall
from protocol.limits.response_memory import ResponseMemory
from protocol.messages import InferenceRequest, InferenceResponse, LaidOutTensor, Tensor, encode_bytes_elements
from protocol.origin import RequestTags
from tests.protocol.edge_link.links import linked
from tests.protocol.edge_link.scripted_core import ScriptedCore


class Origin:
    def tags(self, own_id: str) -> RequestTags:
        return RequestTags("request", "trace", "span", "key")


# Large enough for shared memory: a picture, and the ids of a long prompt.
PICTURE = encode_bytes_elements([bytes(200_000), b"\xff\xd8" * 50_000])
IDS = np.arange(100_000, dtype=np.int32).reshape(1, -1)

# Those that the core has as they are.
SAME: dict[str, Any] = {
    "model_name": "m",
    "inputs": [
        Tensor("text_input", DataType.BYTES, (1,), encode_bytes_elements(["a prompt"])),
        Tensor("image", DataType.BYTES, (2,), PICTURE),
        Tensor.from_numpy("prompt_token_ids", IDS),
        LaidOutTensor("laid_out", DataType.BYTES, (2,), encode_bytes_elements(["a", ""])),
        Tensor.from_numpy("nothing", np.zeros((0, 3), np.float32)),
    ],
    "model_version": 3,
    "id": "chatcmpl-é",
    "requested_outputs": ("text_output", "finish_reason"),
    "parameters": {
        "return_details": True,
        "seed": -(1 << 63),
        "top": (1 << 64) - 1,
        "t": 0.1,
        "text": "ü\0",
        "no": False,
    },
    "sequence_id": "a text",
    "sequence_start": True,
    "sequence_end": True,
    "priority": 7,
    "timeout_microseconds": 30_000_000,
}

# Those that keep a request from crossing: they are of this process's memory, or of a model that has made it.
REFUSED: dict[str, Callable[[], Any]] = {
    "caller": object,
    "has_device_inputs": lambda: True,
    "device_outputs": lambda: frozenset(("OUT",)),
}

# Those in whose place the core has something else, and what that has to be.
OTHER: dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]] = {
    # The core's own samples it.
    "trace": (lambda: EdgeTrace(cast(Any, None), "m"), lambda found: found is None),
    # The link's, where sizes do not vary.
    "template": (object, lambda found: found is None),
    # The edge holds the responses: the core has as many as the window of the link.
    "response_memory": (ResponseMemory, lambda found: found is None),
    "gen_ai": (lambda: GenAiCall(UNRECORDED, "chat", model="m", arrival_ns=1), lambda found: type(found) is NotedCall),
    "origin": (Origin, lambda found: found.tags("") == RequestTags("request", "trace", "span", "key")),
    # By its account's name, where there are keys: see test_charges.
    "charge": (lambda: None, lambda found: found is None),
}


def test_every_field_is_one_of_them() -> None:
    assert {*SAME, *REFUSED, *OTHER} == set(InferenceRequest.__struct_fields__)


def test_the_values_are_no_defaults() -> None:
    plain = InferenceRequest("", [])
    assert [name for name, value in SAME.items() if value == getattr(plain, name)] == []
    assert [name for name, make in REFUSED.items() if make() == getattr(plain, name)] == []


def made(**others: Any) -> InferenceRequest:
    return InferenceRequest(**SAME, **others)


def shown(request: InferenceRequest) -> dict[str, Any]:
    """What has to be the same, so that it can be compared."""
    found = {name: getattr(request, name) for name in SAME}
    found["inputs"] = [(each.name, each.datatype, each.shape, bytes(each.data)) for each in request.inputs]
    types = {name: [type(each) for each in value.values()] for name, value in found.items() if isinstance(value, dict)}
    return {**found, "types": types}


async def in_core(request: InferenceRequest, *, is_linked: bool, is_stream: bool) -> InferenceRequest:
    """The request as a core gets it."""
    core = ScriptedCore()
    got: list[InferenceRequest] = []

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        got.append(asked)
        return True

    async def ask(asked: InferenceCore) -> None:
        if is_stream:
            await asked.infer_stream(request, nobody)
        else:
            await asked.infer(request)
            got.append(core.submitted[-1].request)

    core.stream = stream
    if is_linked:
        async with linked(cast(InferenceCore, core)) as link:
            await ask(link.core)
            return got[0]
    if is_stream:
        await core.infer_stream(request, nobody)
        return got[0]
    return request


async def nobody(response: InferenceResponse) -> None:
    raise AssertionError


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_crosses_is_as_without_a_link(is_stream: bool) -> None:
    alone = await in_core(made(), is_linked=False, is_stream=is_stream)
    by_link = await in_core(made(), is_linked=True, is_stream=is_stream)
    assert shown(by_link) == shown(alone)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", OTHER)
async def test_what_the_core_has_in_its_place(name: str, is_stream: bool) -> None:
    make, is_right = OTHER[name]
    found = await in_core(made(**{name: make()}), is_linked=True, is_stream=is_stream)
    assert is_right(getattr(found, name))
    assert shown(found) == shown(made())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_cross(name: str) -> None:
    assert can_cross(made())
    assert not can_cross(made(**{name: REFUSED[name]()}))


UNENCODABLE: dict[str, dict[str, Any]] = {
    "a long integer": {"parameters": {"seed": 1 << 64}},
    "half a letter in a parameter": {"parameters": {"text": "\ud800"}},
    "half a letter in an id": {"id": "\ud800"},
    "a long sequence": {"sequence_id": 1 << 70},
    "a long timeout": {"timeout_microseconds": 1 << 64},
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", UNENCODABLE)
async def test_what_no_message_can_hold_is_refused_alone(name: str, is_stream: bool) -> None:
    """A client's value is no reason to end the link, on which others wait."""
    core = ScriptedCore()
    async with linked(cast(InferenceCore, core)) as link:
        wrong = InferenceRequest(**(SAME | UNENCODABLE[name]))
        ask: Callable[[], Awaitable[object]] = (
            partial(link.core.infer_stream, wrong, nobody) if is_stream else partial(link.core.infer, wrong)
        )
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="cannot be passed on"):
                await ask()
        assert link.core._requests.segment.blocks.is_unused
        assert (await link.core.infer(made())).outputs
        assert len(core.submitted) == 1
