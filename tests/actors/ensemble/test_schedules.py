"""Random ensembles under random loads, against an interpreter that knows no concurrency.

Each seed makes a graph (conditions, branches that join, optional inputs, decoupled steps inside each other), limits,
several requests at once with random delays in every step, and callers that leave. Every answer must be the
interpreter's, in order; at the end nothing may be held. `TRIOTON_RANDOM_SCHEDULES` says how many seeds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import trio
from trio.testing import wait_all_tasks_blocked

from actors.ensemble.graph import EnsembleGraph, Step
from actors.ensemble.validation import check_composition
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelConfig
from tests.actors.ensemble.ensembles import Arrays, Toy, ensemble, ensemble_config, numbers, request, step, toy, vector
from tests.actors.random_schedules import run_schedules, schedule_count

SCHEDULES = schedule_count(150)
# How many random graphs are tried for one that is valid.
TRIES = 400

Environment: TypeAlias = dict[str, float | bool]


def total(arrays: Arrays) -> float:
    return float(sum(float(array[0]) for array in arrays.values())) % 1000


def models(random_: random.Random) -> dict[str, Toy]:
    """One of each sort; what they answer depends on all that they are given. Sometimes they do so at once."""

    def response_count(arrays: Arrays) -> int:
        return int(total(arrays)) % 4

    def delay(asked: InferenceRequest) -> float | None:
        return random_.random() / 20 if random_.random() < 0.7 else None

    made = [
        toy("sum", lambda x: {"O": vector(total(x) + 1)}, ["I", "J"]),
        toy("one", lambda x: {"O": vector(total(x) * 2 + 1)}, ["I"]),
        toy("maybe", lambda x: {"O": vector(total(x) + 10 * len(x))}, ["I", "J?"]),
        toy("test", lambda x: {"O": x["I"] % 3 > 0}, ["I"], ["O:BOOL"]),
        toy(
            "many",
            lambda x: [{"O": vector(total(x) + 7 * n)} for n in range(response_count(x))],
            ["I"],
            decoupled=True,
        ),
    ]
    for model in made:
        model.before = delay
    return {model.name: model for model in made}


def random_ensemble(
    random_: random.Random, composing: Mapping[str, Toy]
) -> tuple[ModelConfig, list[ModelConfig]] | None:
    """A valid one, or None if the dice did not give one."""
    floats, booleans = ["IN", "IN2"], ["FLAG"]
    steps: list[str] = []
    chosen: list[ModelConfig] = []
    parameters: dict[str, str] = {}
    read: set[str] = set()
    tensors: dict[str, str] = {}
    for index in range(random_.randint(1, 8)):
        name = random_.choices(["sum", "one", "maybe", "test", "many"], [3, 3, 2, 2, 2])[0]
        taken = {"I": random_.choice(floats), "J": random_.choice(floats)}
        if name not in ("sum", "maybe") or (name == "maybe" and random_.random() < 0.2):
            del taken["J"]
        is_join = name not in ("test", "many") and random_.random() < 0.2
        output = random_.choice([t for t in tensors if t.startswith("T")] or ["T0"]) if is_join else f"T{index}"
        if random_.random() < 0.4:
            tensor = random_.choice(booleans)
            parameters[f"condition:{index}"] = random_.choice(["", "!"]) + tensor
            read.add(tensor)
        steps.append(step(name, " ".join(f"{port}={tensor}" for port, tensor in taken.items()), f"O={output}"))
        chosen.append(composing[name].config)
        read.update(taken.values())
        tensors[output] = "BOOL" if name == "test" else "FP32"
        (booleans if name == "test" else floats).append(output)
    outputs = [f"{t}:{kind}" for t, kind in tensors.items() if t not in read or random_.random() < 0.3]
    inputs = [each for each in ("IN", "IN2?", "FLAG:BOOL") if each.rstrip("?").split(":")[0] in read]
    random_.shuffle(outputs)
    if not outputs or "IN" not in inputs:
        return None
    try:
        config = ensemble_config(
            *steps,
            inputs=inputs,
            outputs=outputs,
            parameters={**parameters, "max_inflight_bytes": random_.choice(["0", "1", "20", "100", "1000000"])},
            max_inflight_requests=random_.choice([0, 0, 1, 2, 3]),
        )
        return check_composition(config, chosen), chosen
    except InvalidArgument:
        return None


class Deadlock(Exception):
    """The interpreter's word for an output that is missing."""


MISSING, SKIPPED = object(), object()


def interpret(graph: EnsembleGraph, composing: Mapping[str, Toy], asked: InferenceRequest) -> list[dict[str, Any]]:
    """All responses; an error ends them."""
    plan = graph.plan(asked.requested_outputs)
    order = [node.step for node in plan.nodes if node.step is not None]
    given: dict[str, Any] = dict.fromkeys(graph.inputs, MISSING)
    given.update({tensor.name: tensor.as_numpy() for tensor in asked.inputs})
    wanted = [port.name for port in plan.outputs]
    return list(_responses(order, given, wanted, composing))


def _responses(
    left: list[Step], known: dict[str, Any], wanted: list[str], composing: Mapping[str, Toy]
) -> Iterator[dict[str, Any]]:
    if not left:
        if any(known[name] is MISSING for name in wanted):
            raise Deadlock
        yield {name: known[name].reshape(-1).tolist()[0] for name in wanted if known[name] is not SKIPPED}
        return
    now, *after = left
    (output,) = now.outputs.values()
    fate = _fate(now, known)
    if fate is not None:
        if now.is_decoupled:
            if fate is MISSING:
                raise Deadlock
            return
        if known.get(output, SKIPPED) is SKIPPED:  # else another branch has written it, or should have
            known = {**known, output: fate}
        yield from _responses(after, known, wanted, composing)
        return
    arrays = {port.name: known[port.tensor] for port in now.inputs if _is_there(known[port.tensor])}
    answer = composing[now.model_name].function(arrays)
    for each in [answer] if isinstance(answer, dict) else answer:
        assert isinstance(each, dict)
        yield from _responses(after, {**known, output: each["O"]}, wanted, composing)


def _is_there(value: Any) -> bool:
    return value is not MISSING and value is not SKIPPED


def _fate(now: Step, known: Mapping[str, Any]) -> object | None:
    """Why a step does not run; None if it does."""
    values = [known[tensor] for tensor in now.requires]
    condition = now.condition
    if any(value is SKIPPED for value in values):
        return SKIPPED
    if (
        condition is not None
        and known[condition.tensor] is not MISSING
        and bool(known[condition.tensor][0]) is condition.is_negated
    ):
        return SKIPPED
    return MISSING if any(value is MISSING for value in values) else None


def random_request(random_: random.Random, config: ModelConfig) -> InferenceRequest:
    values: dict[str, Any] = {
        "IN": random_.randrange(20),
        "IN2": random_.randrange(20) if random_.random() < 0.8 else None,
        "FLAG": random_.random() < 0.5,
    }
    names = {tensor.name for tensor in config.input}
    outputs = [tensor.name for tensor in config.output]
    wanted = random_.sample(outputs, random_.randint(1, len(outputs))) if random_.random() < 0.3 else ()
    return request(outputs=wanted, **{n: v for n, v in values.items() if n in names and v is not None})


def test_every_answer_is_the_interpreters() -> None:
    run_schedules(SCHEDULES, check)


async def check(seed: int) -> None:
    random_ = random.Random(seed)
    composing = models(random_)
    found = next(filter(None, (random_ensemble(random_, composing) for _ in range(TRIES))))
    config, chosen = found
    graph = EnsembleGraph(config, chosen)
    made = ensemble(config, *composing.values())
    count = random_.randint(1, 6)

    async def call() -> None:
        asked = random_request(random_, config)
        patience = random_.choice([1e6, 1e6, random_.random() / 5])
        got: list[dict[str, Any]] = []
        error: ServerError | None = None

        async def respond(response: InferenceResponse) -> None:
            got.append(numbers(response))
            if random_.random() < 0.2:
                await trio.sleep(random_.random() / 10)

        with trio.move_on_after(patience) as waiting:
            try:
                await made.infer_stream(asked, respond)
            except ServerError as raised:
                error = raised
        if waiting.cancelled_caught:
            return
        expected: list[dict[str, Any]] = []
        try:
            expected = interpret(graph, composing, asked)
        except Deadlock:
            assert error is not None
            assert "unexpected deadlock" in error.message
            return
        assert error is None
        assert got == expected

    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        async with trio.open_nursery() as calls:
            for _ in range(count):
                calls.start_soon(call)
        await wait_all_tasks_blocked()
        assert made.limits.held_bytes == 0
        assert all(slot.value == made.limits.max_requests for slot in made.limits._slots.values())
        assert not made.running_count
        assert all(model.running == 0 for model in composing.values())
        counted = made.statistics.frozen("e", 1).inference_stats
        assert counted.success.count + counted.fail.count == count, "each once"
        made.drain()
