"""Models with the scripted engine, in its own process: what an engine backend promises whatever the engine is."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from backends.engines import backend
from backends.engines.backend import EngineBackend
from backends.engines.tensors.request import TextRequest
from protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Overloaded,
    QuotaExceeded,
    ServerError,
    Unavailable,
)
from protocol.messages import InferenceResponse
from protocol.quotas.accounts import Ledger, Terms
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Limit, Quota, Unit
from tests.backends.engines.models import tiny_tokenizer, write_model
from tests.backends.engines.serving import gather, kill_workers, outputs, serve
from tests.backends.python.processes import children, until

pytestmark = pytest.mark.slow

TEXT = "The scheduler gives größere batches 🙂 to instances."
TOKENIZER = tiny_tokenizer()
# Slow enough for a test to do something in the middle of a generation.
SLOWLY: dict[str, Any] = {"rule": "repeat", "step_seconds": 0.005}
ENDLESS: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True, "stream": True}


def token_of(text: str) -> int:
    """The only token of a text."""
    [token] = TOKENIZER.encode(text, add_special_tokens=False)
    return token


async def test_a_stream_joined_is_the_whole_text(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted")) as served:
        [whole] = await served.responses(TEXT, exclude_input_in_output=True, return_finish_reason=True)
        assert whole == {"text_output": TEXT, "finish_reason": "stop"}
        parts = await served.responses(TEXT, stream=True, return_num_output_tokens=True)
        assert "".join(each["text_output"] for each in parts) == TEXT
        assert len(parts) > 5
        assert sum(each["num_output_tokens"] for each in parts) == len(TOKENIZER.encode(TEXT)) + 1
        assert await served.text(TEXT, exclude_input_in_output=False) == TEXT * 2
        await served.wait_free()


async def test_token_ids_take_the_place_of_the_text(tmp_path: Path) -> None:
    """Those of a text that its own tokenizer would cut otherwise; the scripted engine gives them back."""
    ids = [token_of(letter) for letter in "instances"]
    assert ids != TOKENIZER.encode("instances", add_special_tokens=False)
    async with serve(write_model(tmp_path / "m", "scripted")) as served:
        [found] = await served.responses("", prompt_token_ids=ids, return_num_input_tokens=True, temperature=0)
        assert found == {"text_output": "instances" * 2, "num_input_tokens": len(ids)}
        assert await served.text("other", prompt_token_ids=ids) == "instances"
        await served.wait_free()
        for wrong in (-1, TOKENIZER.vocabulary_size, 2**31 - 1):
            with pytest.raises(InvalidArgument, match=f"prompt_token_ids: {wrong} is no token of the vocabulary"):
                await served.text("", prompt_token_ids=[*ids, wrong])
        many = ids * 400
        with pytest.raises(InvalidArgument, match=f"has {len(many)} tokens, which leaves no room"):
            await served.text("", prompt_token_ids=many)


async def test_batched_and_alone_are_the_same(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", rule="repeat")) as served:
        texts = [f"request {number} of many" for number in range(20)]
        alone = [await served.text(text, max_tokens=40) for text in texts]
        together = await gather(*(served.text(text, max_tokens=40, stream=True) for text in texts))
        assert together == alone


async def test_the_end_of_a_generation(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", rule="repeat")) as served:
        for stream in (False, True):
            cut = await served.responses(
                TEXT, stream=stream, exclude_input_in_output=True, stop=["größer"], return_finish_reason=True
            )
            assert "".join(each["text_output"] for each in cut) == "The scheduler gives "
            assert cut[-1]["finish_reason"] == "stop"
        await served.wait_free()
        [only] = await served.responses(TEXT, exclude_input_in_output=True, return_finish_reason=True, max_tokens=3)
        assert only["finish_reason"] == "length"
        # What remains of the context of 512, where nothing is said.
        [only] = await served.responses(TEXT, return_num_input_tokens=True, return_num_output_tokens=True)
        assert only["num_input_tokens"] + only["num_output_tokens"] == 512


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("x", {"max_tokens": 512}, "text_input has 2 tokens, and max_tokens is 512"),
        ("x " * 600, {}, "which leaves no room for others: the context has 512"),
        ("x", {"logit_bias": {"1": 1}}, "logit_bias is not supported by engine 'scripted'"),
        ("x", {"lora_name": "a"}, "LoRA feature is not enabled."),
        ("x", {"stop": "a" * 5000}, "stop"),
        ("x", {"top_p": 7}, "top_p"),
    ],
)
async def test_mistakes_are_the_clients(tmp_path: Path, text: str, options: dict[str, Any], problem: str) -> None:
    async with serve(write_model(tmp_path / "m", "scripted")) as served:
        with pytest.raises(InvalidArgument) as caught:
            await served.text(text, **options)
        assert problem in caught.value.message
        assert "'m'" in caught.value.message or "stop" in caught.value.message
        assert await served.text("x") == "x"


async def test_cancelled_by_its_scope_by_its_id_and_by_its_deadline(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY)) as served:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.text, TEXT)
            await served.wait_running()
            nursery.cancel_scope.cancel()
        await served.wait_free()

        async def by_id() -> None:
            with pytest.raises(Cancelled):
                await served.responses(TEXT, request_id="mine", **ENDLESS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(by_id)
            await served.wait_running()
            assert served.core.cancel("m", "mine") == 1
        await served.wait_free()
        with pytest.raises(DeadlineExceeded):
            await served.responses(TEXT, timeout_microseconds=100_000, **ENDLESS)
        await served.wait_free()
        assert served.load()["generation_tokens_total"] > 0


async def test_one_that_waits_is_cancelled_without_the_engine(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", max_inflight_requests=1, **SLOWLY)) as served:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.text, TEXT)
            await served.wait_running()
            with trio.move_on_after(0.05) as scope:
                await served.text(TEXT)
            assert scope.cancelled_caught
            assert served.load()["num_requests_waiting"] == 0
            nursery.cancel_scope.cancel()
        await served.wait_free()


async def test_a_full_queue_refuses_and_the_first_priority_goes_first(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "scripted", max_inflight_requests=1, max_queue_requests=3, **SLOWLY)
    async with serve(folder) as served:
        order: list[str] = []

        async def ask(name: str, options: dict[str, Any]) -> None:
            await served.text(TEXT, request_id=name, **{"max_tokens": 2, **options})
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.text, TEXT)
            await served.wait_running()
            waiting: list[tuple[str, dict[str, Any]]] = [
                ("later", {"sampling_priority": 3}),
                ("plain", {}),
                ("level 1", {"priority": 1}),
            ]
            for place, (name, options) in enumerate(waiting, start=1):
                nursery.start_soon(ask, name, options)
                await served.wait_waiting(place)
            with pytest.raises(Overloaded, match="3 requests wait for its engine"):
                await served.text(TEXT)
        assert order == ["level 1", "plain", "later"]


async def test_a_killed_worker_costs_only_what_it_had_begun(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", max_inflight_requests=2, **SLOWLY)) as served:
        kept: list[str] = []

        async def waits(number: int) -> None:
            kept.append(await served.text(f"number {number}", max_tokens=6))

        async def breaks() -> None:
            with pytest.raises(
                Unavailable, match=r"model instance 'm_0' died: its worker process was killed by SIGKILL"
            ):
                await served.responses(TEXT, **ENDLESS)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(breaks)
            await served.wait_running(2)
            for number in range(5):
                nursery.start_soon(waits, number)
            await served.wait_waiting(5)
            kill_workers(children())
        assert len(kept) == 5
        await served.wait_ready()
        assert await served.text("x", max_tokens=2) == "x"
        await served.wait_free()


async def test_what_is_tokenized_when_the_worker_ends_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize, goes_on, begun = EngineBackend._tokens, threading.Event(), threading.Event()

    def wait_and_tokenize(made: EngineBackend, parsed: TextRequest) -> list[int]:
        begun.set()
        goes_on.wait()
        return tokenize(made, parsed)

    monkeypatch.setattr(backend, "INLINE_CHARACTERS", 3)  # in a thread
    monkeypatch.setattr(EngineBackend, "_tokens", wait_and_tokenize)
    found: list[str] = []

    async def ask() -> None:
        found.append(await served.text(TEXT))

    async with serve(write_model(tmp_path / "m", "scripted")) as served, trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(begun.is_set)
        kill_workers(children())
        await until(lambda: not served.core.is_model_ready("m"))
        goes_on.set()
    assert found == [TEXT]


@pytest.mark.parametrize(
    ("option", "end"),
    [("crash_token", "exited with code 3"), ("raise_token", "exited with code 1")],
)
async def test_an_engine_that_breaks_is_started_anew(tmp_path: Path, option: str, end: str) -> None:
    bad = token_of(" scheduler")
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY, **{option: bad})) as served:
        answers = await gather(
            served.responses("The scheduler", **ENDLESS),
            served.responses("Another", **ENDLESS),
            served.text("x", max_tokens=1),
        )
        for each in answers[:2]:
            assert isinstance(each, Unavailable)
            assert end in each.message
        await served.wait_ready()
        assert await served.text("x", max_tokens=2) == "x"


async def test_an_engine_that_hangs_is_started_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it had fails, and what waits is kept."""
    bad = token_of(" scheduler")
    options = {"hang_token": bad, "step_timeout_seconds": 0.5, "max_inflight_requests": 1}
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY, **options)) as served:
        hung, *kept = await gather(
            served.responses("The scheduler", **ENDLESS),
            *(served.text(f"number {number}", max_tokens=4) for number in range(3)),
        )
        assert isinstance(hung, Unavailable)
        assert "was killed by the server, because its engine has not ended a step, or not answered, for 0.5 s" in (
            hung.message
        )
        assert kept == [TOKENIZER.decode(TOKENIZER.encode(f"number {number}")[:4]) for number in range(3)]
        assert any("parameter step_timeout_seconds" in each.getMessage() for each in caplog.records)
        await served.wait_free()


async def test_an_engine_may_hang_for_ever_if_that_is_wanted(tmp_path: Path) -> None:
    bad = token_of(" scheduler")
    options = {"hang_token": bad, "step_timeout_seconds": 0}
    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY, **options)) as served:
        [worker] = children()
        with trio.move_on_after(1.0) as scope:
            await served.responses("The scheduler", **ENDLESS)
        assert scope.cancelled_caught
        assert children() == [worker]
        kill_workers([worker])


async def test_a_generation_fails_alone(tmp_path: Path) -> None:
    bad = token_of(" scheduler")
    async with serve(write_model(tmp_path / "m", "scripted", fail_token=bad)) as served:
        good, failed = await gather(served.text("Another"), served.text("The scheduler"))
        assert good == "Another"
        assert isinstance(failed, Internal)
        assert failed.message == "model 'm': the script wants this generation to fail"
        await served.wait_free()


async def test_a_slow_client_gets_all_of_it_and_delays_nobody(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "scripted", rule="repeat")) as served:
        goes_on, has_begun = trio.Event(), trio.Event()
        found: list[str] = []

        async def respond(response: InferenceResponse) -> None:
            found.append(outputs(response)["text_output"])
            has_begun.set()
            await goes_on.wait()

        expected = await served.text(TEXT, max_tokens=450)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.core.infer_stream, served.request(TEXT, **ENDLESS), respond)
            await has_begun.wait()
            others = await gather(*(served.text(TEXT, max_tokens=450) for _ in range(5)))
            assert others == [expected] * 5
            await served.wait_free()  # the engine has long ended that of the slow client
            goes_on.set()
        assert "".join(found) == expected
        assert len(found) < 450, "what it had not taken has become one response"


async def test_long_texts_are_tokenized_beside_the_loop(tmp_path: Path) -> None:
    text = "x" * 3000
    folder = write_model(tmp_path / "m", "scripted", max_model_len=0)
    (folder / "1" / "config.json").write_text("{}")
    (folder / "1" / "tokenizer_config.json").write_text("{}")
    async with serve(folder) as served:
        assert await served.text(text, max_tokens=4000) == text
        with trio.move_on_after(0):
            await served.text(text)
        with pytest.raises(InvalidArgument, match="unknown field"):
            await served.text(text, foo=1)
        await served.wait_free()


@pytest.mark.parametrize("seed", range(2))
async def test_many_in_flight_some_of_which_leave(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = write_model(tmp_path / "m", "scripted", rule="repeat", max_num_seqs=32, cache_blocks=200)
    async with serve(folder) as served:
        expected = {count: await served.text(TEXT, max_tokens=count) for count in (1, 5, 30)}
        ended = []

        async def ask(place: int) -> None:
            count, leaves = chance.choice((1, 5, 30)), chance.random() < 0.4
            options: dict[str, Any] = {"max_tokens": count, "stream": chance.random() < 0.5}
            if not options["stream"]:
                del options["stream"]
            with trio.move_on_after(chance.random() * 0.2 if leaves else 60):
                text = await served.text(TEXT, **options)
                assert text == expected[count]
            ended.append(place)

        async with trio.open_nursery() as nursery:
            for place in range(200):
                nursery.start_soon(ask, place)
        assert len(ended) == 200
        await served.wait_free()


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"rule": "wrong"}, "model 'm': ValueError: the option 'rule' must be echo, repeat or script, got 'wrong'"),
        ({"foo": "1"}, "model 'm': ValueError: the scripted engine has no option 'foo'"),
        ({"rule": "script"}, "model 'm': FileNotFoundError"),
    ],
)
async def test_a_load_that_fails_says_why(tmp_path: Path, parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError) as caught:
        async with serve(write_model(tmp_path / "m", "scripted", **parameters)):
            pass
    assert text in str(caught.value)


async def test_a_model_without_a_tokenizer_does_not_load(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "scripted")
    (folder / "1" / "tokenizer.json").unlink()
    with pytest.raises(ServerError, match=r"an engine needs a tokenizer, but '.*' has no tokenizer.json"):
        async with serve(folder):
            pass


async def test_tokens_are_taken_from_the_quota_by_estimate_and_settled(tmp_path: Path) -> None:
    ledger = Ledger(trio.current_time)
    limits: dict[Unit, Rate | int] = {Unit.TOKENS: Rate(400, 86400, 400)}
    ledger.adopt([Terms("alice", Quota("q", limits, {}))])
    account = ledger.account("alice")

    def left() -> int:
        return account.meter(Limit(Unit.TOKENS, limits[Unit.TOKENS])).remaining(trio.current_time())

    async with serve(write_model(tmp_path / "m", "scripted", **SLOWLY)) as served:
        own = len(TOKENIZER.encode(TEXT))

        async def run(**options: Any) -> None:
            request = served.request(TEXT, stream=True, **options)
            request.charge = account.admit("m")
            try:
                await served.core.infer_stream(request, ignore)
            finally:
                request.charge.end()

        await run(max_tokens=30, ignore_eos=True)
        assert left() == 400 - own - 30
        with pytest.raises(QuotaExceeded, match="400 tokens in 86400 s"):
            await run(max_tokens=380)
        assert left() == 400 - own - 30  # a refused one costs nothing
        before = left()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run, max_tokens=200, ignore_eos=True))
            await served.wait_running()
            assert left() == before - own - 200
            nursery.cancel_scope.cancel()
        await served.wait_free()
        assert before - own - 200 < left() <= before - own  # what it has got till then

        before = left()

        async def breaks() -> None:
            with pytest.raises(Unavailable):
                await run(max_tokens=100, ignore_eos=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaks)
            await served.wait_running()
            kill_workers(children())
        assert left() > before - own - 100


async def ignore(response: InferenceResponse) -> None:
    """Take a response."""
