"""Models that call models, through a real core and real worker processes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
import trio

from protocol.errors import Cancelled, Internal, Unavailable
from tests.backends.python.pipelines import (
    COUNT_DOWN,
    DECOUPLED,
    PLUS_ONE,
    Models,
    ask,
    ask_stream,
    executing,
    request,
    serving,
    text,
)
from tests.backends.python.processes import children, until

STRING_OUTPUT = 'output [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]\n'


def saying(body: str) -> tuple[str, str]:
    """A model that answers the text `said`, of its output TEXT."""
    lines = textwrap.dedent(body) + "\nreturn [answer(np.array([said], object), 'TEXT')]"
    return executing(lines), STRING_OUTPUT


ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self.one(r) for r in requests])

    async def one(self, request):
        responses = await asyncio.gather(*[call("plus", given(request) + n).async_exec() for n in range(10)])
        return answer(sum(value(r) for r in responses))
"""


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (executing("return [answer(value(call('plus', given(r)).exec())) for r in requests]"), 6),
        (ASYNC, 10 * 6 + 45),
        (
            # An event loop of the model's own, in the main thread.
            executing("""
                async def go():
                    responses = await asyncio.gather(*[call("plus", [n]).async_exec() for n in range(100)])
                    return sum(value(r) for r in responses)
                return [answer(asyncio.run(go())) for r in requests]
            """),
            100 + 4950,
        ),
        (
            executing("""
                from concurrent.futures import ThreadPoolExecutor
                with ThreadPoolExecutor(8) as pool:
                    found = list(pool.map(lambda n: value(call("plus", [n]).exec()), range(100)))
                return [answer(sum(found)) for r in requests]
            """),
            100 + 4950,
        ),
    ],
    ids=["exec", "async_exec", "own loop", "threads"],
)
async def test_one_model_calls_another(tmp_path: Path, caller: str, expected: float) -> None:
    """One after the other, many at a time, more than may be under way, and in the next batch again."""
    models = {"plus": executing(PLUS_ONE), "caller": caller}
    async with serving(tmp_path, models, backend_config={"python": {"thread-pool-size": "4"}}) as core:
        for _ in range(2):
            assert (await ask(core, "caller", 5.0)).tolist() == [expected]


async def test_tensors_of_any_size_cross_both_ways(tmp_path: Path) -> None:
    """None of them is written over later: the caller keeps them all."""
    model = executing("""
        kept = [value(call("plus", np.full(size, size)).exec()) for size in (0, 1, 5000, 500_000, 3)]
        assert [len(array) for array in kept] == [0, 1, 5000, 500_000, 3]
        return [answer([float((array == len(array) + 1).all()) for array in kept]) for r in requests]
    """)
    async with serving(tmp_path, {"plus": executing(PLUS_ONE), "caller": model}) as core:
        assert (await ask(core, "caller")).tolist() == [1.0] * 5


async def test_a_call_carries_everything_a_request_can(tmp_path: Path) -> None:
    """The called model sees id, sequence, timeout, parameters, and the outputs that were asked for."""
    callee = executing("""
        r, = requests
        about = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),
                 sorted(r.requested_output_names())]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([json.dumps(about)], object))],
                                           parameters={"n": 5, "b": True, "s": "é"})]
    """)
    caller, config = saying("""
        response = call("callee", [1], ["TEXT"], request_id="seven", correlation_id=9, flags=3, timeout=55_000_000,
                        parameters={"a": 1, "b": "x", "c": True}, model_version=1,
                        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)).exec()
        if response.has_error(): raise ValueError(response.error().message())
        said = response.output_tensors()[0].as_numpy()[0].decode() + response.parameters()
    """)
    async with serving(tmp_path, {"callee": (callee, STRING_OUTPUT), "caller": (caller, config)}) as core:
        assert text(await ask(core, "caller")) == (
            '["seven", 9, 3, 55000000, "{\\"a\\": 1, \\"b\\": \\"x\\", \\"c\\": true}", ["TEXT"]]'
            '{"n": 5, "b": true, "s": "\\u00e9"}'
        )


FAILING = executing("""
    if given(requests[0])[0] < 0:
        raise ValueError("bad")
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("mine", pb_utils.TritonError.ALREADY_EXISTS))]
""")
RAN = "Model {} - Error when running inference: "


@pytest.mark.parametrize(
    ("called", "message", "code"),
    [
        (
            "call('nobody', [1])",
            RAN.format("nobody") + "Failed for execute the inference request. Model 'nobody' is not ready.",
            "UNAVAILABLE",
        ),
        (
            "call('plus', [1], model_version=7)",
            RAN.format("plus") + "Failed for execute the inference request. Model 'plus' is not ready.",
            "UNAVAILABLE",
        ),
        (
            "call('plus', [[1.0]])",
            RAN.format("plus")
            + "[request id: <id_unknown>] unexpected shape for input 'IN' for model 'plus'. Expected [-1], got [1,1]",
            "INVALID_ARG",
        ),
        ("call('failing', [1])", "mine", "ALREADY_EXISTS"),
        ("call('failing', [-1])", "Failed to process the request(s) for model 'failing_0', message: V", "INTERNAL"),
        (
            "call('down', [1])",
            RAN.format("down") + "Model down is using the decoupled. The current BLS request call doesn't support "
            "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
            "'async_exec' calls for decoupled models.'",
            "INTERNAL",
        ),
    ],
)
@pytest.mark.parametrize("how", ["{}.exec()", "asyncio.run(later({}))", "list({}.exec(decoupled=True))[-1]"])
async def test_errors_come_as_responses(tmp_path: Path, called: str, message: str, code: str, how: str) -> None:
    if "down" in called and "decoupled" in how:
        pytest.skip("that is how it is called rightly")
    caller, config = saying(f"""
        async def later(request):
            return await request.async_exec()
        response = {how.format(called)}
        assert response.has_error() and not response.output_tensors()
        said = response.error().code().name + " " + response.error().message()
    """)
    models: Models = {
        "plus": executing(PLUS_ONE),
        "failing": FAILING,
        "down": (executing(COUNT_DOWN), DECOUPLED),
        "caller": (caller, config),
    }
    async with serving(tmp_path, models) as core:
        found = text(await ask(core, "caller"))
    assert found.startswith(f"{code} {message}")


@pytest.mark.parametrize("place", ["initialize", "finalize"])
async def test_calls_belong_into_execute(tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture) -> None:
    arguments = "self, args" if place == "initialize" else "self"
    model = f"""
class TritonPythonModel:
    def {place}({arguments}):
        try:
            call("plus", [1]).exec()
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_error("refused: " + str(error))

    def execute(self, requests):
        return [answer(given(r)) for r in requests]
"""
    async with serving(tmp_path, {"plus": executing(PLUS_ONE), "caller": model}):
        pass
    assert "refused: BLS is only supported during the 'execute' function." in caplog.text


STREAMING = {
    "for": """
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(self.all(call("down", given(r)).exec(decoupled=True))) for r in requests]

            def all(self, responses):
                first = [list(value(r)) if r.output_tensors() else [0] for r in responses]
                assert first == [list(value(r)) if r.output_tensors() else [0] for r in responses], "once more"
                return np.concatenate(first)
        """,
    "async for": """
        class TritonPythonModel:
            async def execute(self, requests):
                return [answer(await self.all(call("down", given(r)))) for r in requests]

            async def all(self, called):
                responses = await called.async_exec(decoupled=True)
                first = [list(value(r)) if r.output_tensors() else [0] async for r in responses]
                assert first == [list(value(r)) if r.output_tensors() else [0] for r in responses], "once more"
                return np.concatenate(first)
        """,
}


@pytest.mark.parametrize("way", STREAMING)
async def test_a_decoupled_model_is_called(tmp_path: Path, way: str) -> None:
    """Its responses come in order, as many as there are; the bare flag comes as an empty one."""
    models: Models = {"down": (executing(COUNT_DOWN), DECOUPLED), "caller": STREAMING[way]}
    async with serving(tmp_path, models) as core:
        for count in (0, 1, 200):
            assert (await ask(core, "caller", float(count))).tolist() == list(range(count, -1, -1))


async def test_any_model_can_be_called_as_a_stream(tmp_path: Path) -> None:
    model = executing("""
        responses = [list(call("plus", given(r)).exec(decoupled=True)) for r in requests]
        return [answer(value(only)) for only, in responses]
    """)
    async with serving(tmp_path, {"plus": executing(PLUS_ONE), "caller": model}) as core:
        assert (await ask(core, "caller", 4.0)).tolist() == [5.0]


async def test_a_caller_that_does_not_look_stops_the_called_model(tmp_path: Path) -> None:
    """No more is sent to it than it has room for; the rest comes when it looks on."""
    sent = tmp_path / "sent"
    endless = executing(f"""
        sender = requests[0].get_response_sender()
        for number in range(1000):
            sender.send(answer([float(number)]))
            with open({str(sent)!r}, "a") as file:
                file.write("x")
        sender.send(flags=FINAL)
    """)
    caller = executing(f"""
        responses = call("endless", [1]).exec(decoupled=True)
        first = [value(next(responses)) for _ in range(3)]
        size = -1
        while size != os.path.getsize({str(sent)!r}):
            size = os.path.getsize({str(sent)!r})
            time.sleep(0.2)
        rest = [value(r) for r in responses if r.output_tensors()]
        assert np.concatenate([*first, *rest]).tolist() == list(range(1000))
        return [answer([float(size)]) for r in requests]
    """)
    async with serving(tmp_path, {"endless": (endless, DECOUPLED), "caller": caller}) as core:
        assert (await ask(core, "caller"))[0] < 250


async def test_a_stream_that_is_cancelled_stops_the_called_model(tmp_path: Path) -> None:
    """And ends with an error; one that is dropped lets it go on to its end."""
    endless = executing(f"""
        sender = requests[0].get_response_sender()
        limit = given(requests[0])[0]
        while not sender.is_cancelled() and limit > 0:
            sender.send(answer([limit]))
            limit -= 1
        open({str(tmp_path)!r} + "/ended", "a").write(f"{{limit <= 0}} ")
        sender.send(flags=FINAL)
    """)
    caller = executing("""
        import gc
        responses = call("endless", [1e9]).exec(decoupled=True)
        next(responses)
        responses.cancel()
        *_, last = responses
        assert last.error().code() == pb_utils.TritonError.CANCELLED
        responses.cancel()
        dropped = call("endless", [3000]).exec(decoupled=True)
        next(dropped)
        del dropped
        gc.collect()
        return [answer(given(r)) for r in requests]
    """)
    async with serving(tmp_path, {"endless": (endless, DECOUPLED), "caller": caller}) as core:
        await ask(core, "caller")
        await until(lambda: (tmp_path / "ended").read_text() == "False True ")


SLOW = executing("""
    r, = requests
    while not r.is_cancelled():
        time.sleep(0.001)
    open(os.environ["SEEN"], "a").write("x")
    return [answer(given(r))]
""")
WAITING = {
    "exec": executing("return [answer([float(call('slow', given(r)).exec().error().code())]) for r in requests]"),
    "async_exec": """
        class TritonPythonModel:
            async def execute(self, requests):
                responses = await asyncio.gather(*[call("slow", given(r)).async_exec() for r in requests])
                return [answer([float(r.error().code())]) for r in responses]
        """,
    "thread": executing("""
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as pool:
            return list(pool.map(lambda r: answer([float(call("slow", given(r)).exec().error().code())]), requests))
    """),
    "stream": executing("""
        return [answer([float(list(call("slow", given(r)).exec(decoupled=True))[-1].error().code())]) for r in requests]
    """),
    "trace": """
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    threading.Thread(target=self.later, args=(r, r.get_response_sender())).start()

            def later(self, r, sender):
                sender.send(answer([float(call("slow", given(r), trace=r.trace()).exec().error().code())]), FINAL)
        """,
}


@pytest.mark.parametrize("way", WAITING)
async def test_a_call_ends_with_its_client(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through both models: the called one sees it, and the caller goes on."""
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    async with serving(tmp_path / "models", {"slow": SLOW, "caller": WAITING[way]}) as core:
        for number in (1, 2):
            with trio.move_on_after(0.5) as scope:
                await ask(core, "caller")
            assert scope.cancelled_caught
            await until(lambda number=number: seen.exists() and len(seen.read_text()) == number)  # type: ignore[misc]


async def test_a_call_of_a_batch_goes_on_while_anybody_waits_for_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    slow = executing(f"""
        while not os.path.exists({str(go)!r}):
            assert not requests[0].is_cancelled()
            time.sleep(0.001)
        return [answer(given(r)) for r in requests]
    """)
    batching = (
        "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000 }"
    )
    caller = executing("""
        assert len(requests) == 2
        found = value(call("slow", [5]).exec())
        return [answer([found]) for r in requests]
    """)
    models: Models = {"slow": slow, "caller": (caller, batching)}
    async with serving(tmp_path / "models", models) as core, trio.open_nursery() as nursery:
        asked = [request("caller") for _ in range(2)]
        for each in asked:
            each.inputs[0].shape = (1, 1)
        leaving = trio.CancelScope()

        async def leave() -> None:
            with leaving:
                await core.infer(asked[0])

        async def stay() -> None:
            assert (await core.infer(asked[1])).outputs[0].as_numpy().tolist() == [[5.0]]

        nursery.start_soon(leave)
        nursery.start_soon(stay)
        await trio.sleep(0.3)
        leaving.cancel()
        await trio.sleep(0.1)
        go.touch()


async def test_a_cancelled_coroutine_gives_its_call_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    caller = """
        class TritonPythonModel:
            async def execute(self, requests):
                try:
                    await asyncio.wait_for(call("slow", [1]).async_exec(), 0.2)
                except asyncio.TimeoutError:
                    return [answer([7.0]) for r in requests]
    """
    async with serving(tmp_path / "models", {"slow": SLOW, "caller": caller}) as core:
        assert (await ask(core, "caller")).tolist() == [7.0]
        await until(seen.exists)


SELF = executing("return [answer(value(call('me', given(r)).exec())) for r in requests]")


@pytest.mark.parametrize("count", [1, 2])
async def test_a_model_that_calls_itself_is_refused_when_no_instance_is_left(tmp_path: Path, count: int) -> None:
    async with serving(tmp_path, {"me": (SELF, f"instance_group [ {{ count: {count} }} ]")}) as core:
        for _ in range(2):
            with pytest.raises(
                Internal, match="me - Error when running inference: the call from model 'me' could never"
            ):
                await ask(core, "me")


async def test_a_circle_of_models_is_refused_and_what_ends_is_not(tmp_path: Path) -> None:
    """The input is how often the models are to call each other."""
    models = {
        name: (
            executing(f"""
                left = given(requests[0])
                return [answer(left if left[0] <= 0 else value(call("{other}", left - 1).exec()) + 1)]
            """),
            "instance_group [ { count: 2 } ]",
        )
        for name, other in (("a", "b"), ("b", "a"))
    }
    async with serving(tmp_path, models) as core:
        assert (await ask(core, "a", 3.0)).tolist() == [3.0]
        with pytest.raises(Internal, match=r"waits for the end of this call \(b → a → b\); more instances"):
            await ask(core, "a", 4.0)
        assert (await ask(core, "a", 2.0)).tolist() == [2.0]


async def test_two_clients_whose_calls_cross_do_not_wait_for_ever(tmp_path: Path) -> None:
    """Each call for itself could be answered; at least one of the two is."""
    models = {
        name: executing(f"""
            if given(requests[0])[0] == 0:
                return [answer(given(r)) for r in requests]
            open({str(tmp_path)!r} + "/{name}", "w").close()
            while not os.path.exists({str(tmp_path)!r} + "/{other}"):
                time.sleep(0.001)
            response = call("{other}", [0]).exec()
            return [answer([-1.0 if response.has_error() else 1.0]) for r in requests]
        """)
        for name, other in (("a", "b"), ("b", "a"))
    }
    answers: list[float] = []

    async def run(name: str) -> None:
        answers.extend(await ask(core, name))

    async with serving(tmp_path / "models", models) as core, trio.open_nursery() as nursery:
        nursery.start_soon(run, "a")
        nursery.start_soon(run, "b")
    assert sorted(answers) == [-1.0, 1.0]


ENSEMBLE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
    model_name: "caller" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} ] }
"""


async def test_a_circle_through_an_ensemble_is_refused(tmp_path: Path) -> None:
    (tmp_path / "around" / "1").mkdir(parents=True)
    (tmp_path / "around" / "config.pbtxt").write_text(ENSEMBLE)
    caller = executing("""
        found = given(requests[0])[0]
        return [answer([found]) if found == 0 else answer(value(call("around", [found - 1]).exec()))]
    """)
    async with serving(tmp_path, {"caller": caller}) as core:
        assert (await ask(core, "around", 0.0)).tolist() == [0.0]
        with pytest.raises(Internal, match="could never be answered"):
            await ask(core, "around", 1.0)


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('bad')"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_called_model_that_ends_in_the_middle_answers_its_caller(
    tmp_path: Path, end: str, stream: bool
) -> None:
    """With an error that says so; the caller itself goes on."""
    before = "requests[0].get_response_sender().send(answer([1.0]))\n" if stream else ""
    callee = (executing(before + end), DECOUPLED if stream else "")
    caller, config = saying(f"""
        response = call("callee", [1]).exec({"decoupled=True" if stream else ""})
        if {stream}:
            first, response = response
            assert value(first).tolist() == [1.0]
        said = response.error().code().name + " " + response.error().message()
    """)
    async with serving(tmp_path, {"callee": callee, "caller": (caller, config)}) as core:
        found = text(await ask(core, "caller"))
        if "raise" in end:
            assert found.startswith("INTERNAL Failed to process the request(s) for model 'callee_0', message: Value")
        else:
            assert found.startswith("UNAVAILABLE model instance 'callee_0' died: its worker process ")


@pytest.mark.parametrize("how", ["exec()", "exec(decoupled=True)"])
async def test_a_caller_that_dies_gives_its_calls_up(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    caller = executing(f"""
        threading.Timer(0.2, os._exit, (3,)).start()
        call("slow", [1]).{how}
        time.sleep(1000)
    """)
    async with serving(tmp_path / "models", {"slow": SLOW, "caller": caller}) as core:
        with pytest.raises(Unavailable, match="exited with code 3"):
            await ask(core, "caller")
        await until(seen.exists)


async def test_a_call_that_is_accepted_is_answered_while_the_server_stops(tmp_path: Path) -> None:
    """Also by models that nobody may ask any more."""
    caller = executing(f"""
        open({str(tmp_path)!r} + "/began", "w").close()
        while not os.path.exists({str(tmp_path)!r} + "/go"):
            time.sleep(0.001)
        return [answer(value(call("plus", given(r)).exec())) for r in requests]
    """)
    found: list[float] = []

    async def run(core: object) -> None:
        found.extend(await ask(core, "caller", 5.0))  # type: ignore[arg-type]  # of the block below

    async with (
        trio.open_nursery() as nursery,
        serving(tmp_path / "models", {"plus": executing(PLUS_ONE), "caller": caller}) as core,
    ):
        nursery.start_soon(run, core)
        await until((tmp_path / "began").exists)
        core.stop()
        with pytest.raises(Unavailable):
            await ask(core, "plus", 1.0)
        (tmp_path / "go").touch()
    assert found == [6.0]
    assert not children()


async def test_a_worker_may_not_make_more_calls_than_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    caller = executing("""
        from trioton_worker.session import session
        session().calls.limit = 1000
        threads = [threading.Thread(target=lambda: call("slow", [1]).exec()) for _ in range(6)]
        [thread.start() for thread in threads]
        time.sleep(1000)
    """)
    config = {"python": {"thread-pool-size": "4"}}
    async with serving(tmp_path / "models", {"slow": SLOW, "caller": caller}, backend_config=config) as core:
        with pytest.raises(Unavailable, match=r"it makes call \d+ beside 4 others"):
            await ask(core, "caller")


async def test_calls_are_counted_and_batched_as_any_request(tmp_path: Path) -> None:
    batching = (
        "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }"
    )
    callee = executing("return [answer(given(r) * 0 + len(requests)) for r in requests]")
    caller = executing("""
        async def go():
            return await asyncio.gather(*[call("callee", [[1]]).async_exec() for n in range(4)])
        return [answer([value(r)[0, 0] for r in asyncio.run(go())]) for r in requests]
    """)
    async with serving(tmp_path, {"callee": (callee, batching), "caller": caller}) as core:
        assert (await ask(core, "caller")).tolist() == [4.0] * 4
        [statistics] = core.model_statistics("callee")
    assert (statistics.inference_count, statistics.execution_count) == (4, 1)


async def test_a_client_can_stop_a_pipeline_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    async with serving(tmp_path / "models", {"slow": SLOW, "caller": WAITING["exec"]}) as core:

        async def run() -> None:
            with pytest.raises(Cancelled):
                await ask(core, "caller", id="stop me")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.sleep(0.3)
            assert core.cancel("caller", "stop me") == 1
        await until(seen.exists)


async def test_large_batches_of_calls_leave_nothing_behind(tmp_path: Path) -> None:
    caller = executing("""
        for n in range(300):
            assert value(call("plus", np.full(1000, n)).exec())[0] == n + 1
        from trioton_worker.session import session
        here = session()
        left = len(here.calls._open) + len(here.calls._limited) + len(here.calls._queued)
        return [answer([float(left)]) for r in requests]
    """)
    async with serving(tmp_path, {"plus": executing(PLUS_ONE), "caller": caller}) as core:
        assert (await ask(core, "caller")).tolist() == [0.0]


async def test_a_stream_through_two_models(tmp_path: Path) -> None:
    """A decoupled model that passes on what another one streams."""
    caller = executing("""
        for r in requests:
            sender = r.get_response_sender()
            for response in call("down", given(r)).exec(decoupled=True):
                if response.output_tensors():
                    sender.send(answer(value(response) * 10))
            sender.send(flags=FINAL)
    """)
    models = {"down": (executing(COUNT_DOWN), DECOUPLED), "caller": (caller, DECOUPLED)}
    async with serving(tmp_path, models) as core:
        found = await ask_stream(core, "caller", 100.0)
    assert np.concatenate([r.outputs[0].as_numpy() for r in found]).tolist() == list(range(1000, 0, -10))
