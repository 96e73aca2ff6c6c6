"""The isolation modes: what a model may count on is the same in each; what is shared, and what ends what, is not."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from backends.interface import InstanceDied, InstanceSpec, ModelSource
from backends.python import PythonBackend
from protocol.errors import Internal, InvalidArgument, ServerError
from repository.model_config import InstanceKind, ModelConfig
from tests.backends.python.models import (
    CONFIG,
    DECOUPLED,
    IDENTITY,
    Receiver,
    answers,
    executing,
    infer,
    output,
    parameters,
    request,
    running,
    stream,
    write_model,
)
from tests.backends.python.processes import children, open_descriptors, until

MODES = ("process", "threads", "fork", "in_process")
ALL_MODES = (*MODES, "in_loop")  # the last one for models that do not wait
IN_SERVER = ("in_process", "in_loop")
SHARING = ("threads", *IN_SERVER)
ALLOWED = {"allow-in-process": "true"}


def source_of(directory: Path, text: str, mode: str, config: ModelConfig = CONFIG, **others: str) -> ModelSource:
    write_model(directory, text)
    config = msgspec.structs.replace(config, parameters=parameters(ISOLATION=mode, **others))
    return ModelSource("m", 1, directory, config, ALLOWED)


def instance_of(source: ModelSource, number: int = 0) -> PythonBackend:
    return PythonBackend(InstanceSpec(source, f"m_{number}"))


@asynccontextmanager
async def instances(source: ModelSource, count: int = 2) -> AsyncIterator[list[PythonBackend]]:
    """Several instances of one load."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(instance_of(source, number))) for number in range(count)]


def number(response: object) -> float:
    return float(output(response).item())  # type: ignore[arg-type]  # checked there


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_two_instances_serve_and_leave_nothing(tmp_path: Path, mode: str) -> None:
    """Small and large tensors, and arrays that the model holds. No descriptor waits for a collection of garbage."""
    source = source_of(tmp_path, executing(IDENTITY), mode)
    descriptors = open_descriptors()
    gc.disable()
    try:
        async with instances(source) as both:
            for instance in both:
                for size in (2, 1 << 16):
                    array = np.random.default_rng(1).random((1, size), np.float32)
                    assert (output((await infer(instance, request(array)))[0]) == array).all()
        assert not children()
        assert not open_descriptors() - descriptors
    finally:
        gc.enable()


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_errors_in_each_phase(tmp_path: Path, mode: str) -> None:
    model = """
        import triton_python_backend_utils as pb_utils
        {at_import}
        class TritonPythonModel:
            def initialize(self, args):
                {in_initialize}
            def execute(self, requests):
                if requests[0].request_id() == "one":
                    error = pb_utils.TritonError("mine", pb_utils.TritonError.NOT_FOUND)
                    return [pb_utils.InferenceResponse(error=error)]
                raise ValueError("all")
            def finalize(self):
                raise ValueError("the end")
    """
    for place in ("at_import", "in_initialize"):
        text = model.format(**{"at_import": "pass", "in_initialize": "pass", place: f"raise ValueError('{place}')"})
        with pytest.raises(Internal, match=f"ValueError: {place}"):
            await instance_of(source_of(tmp_path / place, text, mode)).load()
        assert not children()
    async with running(instance_of(source_of(tmp_path, model.format(at_import="", in_initialize="pass"), mode))) as one:
        [answer] = await infer(one, request(id="one"))
        assert isinstance(answer, ServerError)
        assert (answer.message, answer.label) == ("mine", "Not found")
        with pytest.raises(Internal, match="for model 'm_0', message: ValueError: all"):
            await infer(one, request())
    assert not children()


@pytest.mark.parametrize("mode", MODES)
async def test_a_decoupled_model(tmp_path: Path, mode: str) -> None:
    model = executing("""
        for request in requests:
            sender = request.get_response_sender()
            def work(sender=sender):
                for value in range(3):
                    sender.send(answer(np.array([value], np.float32)))
                sender.send(flags=FINAL)
            threading.Thread(target=work).start()
    """)
    async with instances(source_of(tmp_path, model, mode, DECOUPLED)) as both:
        for instance in both:
            for receiver in await stream(instance, request(), request()):
                assert answers(receiver) == [0, 1, 2]
                assert receiver.error is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["async def execute", "def execute", "decorated"])
async def test_coroutines_run_beside_each_other(tmp_path: Path, mode: str, form: str) -> None:
    """The first batch waits for the second one. What counts is what `execute` returns, not how it is written."""
    model = """
        import asyncio
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def initialize(self, args):
                self.event = None
            async def execute(self, requests):
                self.event = self.event or asyncio.Event()
                if requests[0].request_id() == "second":
                    self.event.set()
                await self.event.wait()
                array = requests[0].inputs()[0].as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for _ in requests]
            async def is_ready(self):
                return True
    """
    if form == "def execute":
        model = model.replace("async def execute(", "async def run(")
        model += "        def execute(self, requests):\n                return self.run(requests)\n"
    elif form == "decorated":
        model = model.replace("async def execute(", "@plainly\n            async def execute(")
        model = "\n        plainly = lambda run: lambda self, requests: run(self, requests)\n" + model
    async with instances(source_of(tmp_path, model, mode)) as both:
        for instance in both:
            assert await instance.is_ready()
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(infer, instance, request())
                    await trio.testing.wait_all_tasks_blocked()
                    await infer(instance, request(id="second"))


@pytest.mark.parametrize("mode", MODES)
async def test_a_model_sees_that_its_client_has_gone(tmp_path: Path, mode: str) -> None:
    model = executing("""
        [request] = requests
        sender = request.get_response_sender()
        sender.send(answer(np.array([1.0], np.float32)))
        while not request.is_cancelled():
            time.sleep(0.001)
        sender.send(flags=FINAL)
    """)
    async with running(instance_of(source_of(tmp_path, model, mode, DECOUPLED))) as instance:
        asked, receiver = request(), Receiver()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(instance.execute_decoupled, [asked], [receiver])
            await receiver.wait_count(1)
            receiver.is_cancelled = True
            instance.cancel(asked)
        with trio.fail_after(10):
            await receiver.ended.wait()


@pytest.mark.parametrize("mode", ["process", "threads", "fork"])
async def test_the_end_of_a_model_is_seen(tmp_path: Path, mode: str) -> None:
    """Idle and in a batch; it can be loaded anew, as its actor does it."""
    source = source_of(tmp_path, executing(f"os._exit(3)\n{IDENTITY}"), mode)
    instance = instance_of(source)
    await instance.load()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(instance.wait_died)
            with pytest.raises(InstanceDied) as death:
                await infer(instance, request())
        assert death.value.message == "model instance 'm_0' died: its worker process exited with code 3"
        await instance.unload()
    assert not children()
    write_model(tmp_path, executing(IDENTITY))
    async with running(instance_of(source)) as again:
        assert output((await infer(again, request((3.0,))))[0]).tolist() == [[3.0]]


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_what_instances_share(tmp_path: Path, mode: str) -> None:
    """Threads: the module and its class. Forks: nothing that they write, but what was there before is theirs all."""
    model = """
        import os, threading
        import numpy as np
        import triton_python_backend_utils as pb_utils
        loaded = []
        class TritonPythonModel:
            def initialize(self, args):
                loaded.append(args["model_instance_name"])
                self.forked = ""
            def after_fork(self, args):
                self.forked = args["model_instance_name"]
            def execute(self, requests):
                about = [",".join(loaded), self.forked, str(os.getpid()), pb_utils.get_model_dir()]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(about, object))]) for _ in requests]
    """
    async with instances(source_of(tmp_path, model, mode)) as both:
        arrays = [output((await infer(instance, request()))[0]).tolist() for instance in both]
    found = [[text.decode() for text in array] for array in arrays]
    assert [each[3] for each in found] == [str(tmp_path / "1")] * 2
    assert [each[:2] for each in found] == {
        "process": [["m_0", ""], ["m_1", ""]],
        "threads": [["m_0,m_1", ""]] * 2,
        "in_process": [["m_0,m_1", ""]] * 2,
        "in_loop": [["m_0,m_1", ""]] * 2,
        "fork": [["m_template", "m_0"], ["m_template", "m_1"]],
    }[mode]
    pids = {int(each[2]) for each in found}
    assert len(pids) == (1 if mode in SHARING else 2)
    assert (os.getpid() in pids) == (mode in IN_SERVER)


async def test_a_crash_of_one_thread_ends_all_and_all_can_come_back(tmp_path: Path) -> None:
    source = source_of(tmp_path, executing(f"if requests[0].request_id() == 'die': os._exit(5)\n{IDENTITY}"), "threads")
    both = [instance_of(source, number) for number in range(2)]
    for instance in both:
        await instance.load()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for instance in both:
                nursery.start_soon(instance.wait_died)
            with pytest.raises(InstanceDied, match="exited with code 5"):
                await infer(both[0], request(id="die"))
        with pytest.raises(InstanceDied, match="exited with code 5"):
            await infer(both[1], request())
        for instance in both:
            await instance.unload()
    async with instances(source) as again:
        for instance in again:
            await infer(instance, request())
    assert not children()


async def test_one_fork_dies_alone(tmp_path: Path) -> None:
    model = executing("return [answer(np.array([[os.getpid()]])) for r in requests]")
    source = source_of(tmp_path, model, "fork")
    first, second = (instance_of(source, number) for number in range(2))
    await first.load()
    async with running(second):
        [response] = await infer(first, request())
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.wait_died)
                os.kill(int(number(response)), signal.SIGKILL)
        with pytest.raises(InstanceDied, match="was killed by SIGKILL"):
            await infer(first, request())
        await first.unload()
        await infer(second, request())
        async with running(instance_of(source)) as again:
            await infer(again, request())
    assert not children()


@pytest.mark.parametrize("mode", ["process", "threads", "fork"])
async def test_a_hanging_model_is_killed(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.python.workers.link.FINALIZE_SECONDS", 0.2)
    started = tmp_path / "started"
    model = executing(f"open({str(started)!r}, 'w').close()\nwhile True: pass")
    async with running(instance_of(source_of(tmp_path, model, mode))) as instance, trio.open_nursery() as nursery:
        nursery.start_soon(infer, instance, request())
        await until(started.exists)
        nursery.cancel_scope.cancel()
    assert not children()


async def test_a_hanging_thread_in_the_server_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop goes on meanwhile; when the model returns at last, its thread ends, and its modules are forgotten."""
    path = list(sys.path)
    monkeypatch.setattr("backends.python.workers.link.FINALIZE_SECONDS", 0.2)
    monkeypatch.setattr("backends.python.workers.in_process._END_SECONDS", 0.2)
    started, go, gone = tmp_path / "started", tmp_path / "go", tmp_path / "gone"
    model = executing(f"""
        open({str(started)!r}, 'w').close()
        while not os.path.exists({str(go)!r}):
            time.sleep(0.001)
        open({str(gone)!r}, 'w').close()
        {IDENTITY}
    """)
    source = source_of(tmp_path, model, "in_process")
    async with running(instance_of(source)) as instance, trio.open_nursery() as nursery:
        nursery.start_soon(infer, instance, request())
        await until(started.exists)
        nursery.cancel_scope.cancel()
    assert "m_0: its thread does not end" in caplog.text
    assert sys.path != path
    go.touch()
    await until(gone.exists)
    await until(lambda: sys.path == path)


@pytest.mark.parametrize("mode", ["in_process", "in_loop"])
async def test_what_was_imported_from_its_folders_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """What the model has imported is forgotten, also what it imported late."""

    def its_own() -> list[str]:
        return [name for name in sys.modules if name.endswith(("early_of_model", "late_of_model"))]

    model = executing("import late_of_model\nreturn [answer(r.inputs()[0].as_numpy()) for r in requests]")
    files = {"early_of_model": "", "late_of_model": "", "of_another": ""}
    source = source_of(tmp_path, "import early_of_model\n" + model, mode)
    folder = write_model(tmp_path, "import early_of_model\n" + model, files=files)
    monkeypatch.syspath_prepend(str(folder))
    other = importlib.import_module("of_another")
    monkeypatch.setattr(sys, "path", sys.path[1:])
    async with running(instance_of(source)) as instance:
        await infer(instance, request())
        assert len(its_own()) == 2
    assert not its_own()
    assert sys.modules.pop("of_another") is other


async def test_two_models_in_the_server_have_each_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also in threads that they have started; and a model can be loaded anew with another module."""
    model = """
        import threading
        import numpy as np
        import triton_python_backend_utils as pb_utils
        import {name}_helper
        class TritonPythonModel:
            def execute(self, requests):
                found = []
                threads = [threading.Thread(target=self.note, args=(found,)) for _ in range(2)]
                for thread in threads:
                    thread.start()
                    thread.join()
                found.append({name}_helper.VALUE)
                array = np.array(found, object)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for _ in requests]
            def note(self, found):
                pb_utils.Logger.log_info("by {name}")
                found.append(pb_utils.get_model_dir())
    """
    caplog.set_level("INFO")

    def source(name: str, value: str) -> ModelSource:
        made = source_of(tmp_path / name, model.format(name=name), "in_process")
        (made.version_directory / f"{name}_helper.py").write_text(f"VALUE = '{value}'\n")
        return ModelSource(name, 1, made.model_directory, made.config, ALLOWED)

    for value in ("old", "renewed"):
        async with instances(source("a", value), 1) as [a], instances(source("b", value), 1) as [b]:
            for name, instance in {"a": a, "b": b}.items():
                folder = str(tmp_path / name / "1").encode()
                [response] = await infer(instance, request())
                assert output(response).tolist() == [folder, folder, value.encode()]
    assert {(r.name, r.getMessage()) for r in caplog.records if "by " in r.getMessage()} == {
        ("trioton.model.a", "m_0: by a"),
        ("trioton.model.b", "m_0: by b"),
    }


async def test_modules_of_one_name_are_each_model_s_own(tmp_path: Path) -> None:
    """Also where the name is the server's; packages, their parts, relative imports, and imports while it runs."""
    imports = """
    import helper
    import protocol as package
    import parts.deep
    from helper import VALUE
    from parts import deep, other as third
    from . import helper as beside
    """
    execute = executing("""
        from protocol import PLACE
        import protocol
        found = [helper.VALUE, VALUE, package.PLACE, PLACE, protocol.PLACE, parts.deep.VALUE, deep.VALUE, third.VALUE]
        return [answer(np.array([*found, beside.VALUE], object)) for r in requests]
    """)

    def source(name: str, value: str) -> ModelSource:
        made = source_of(tmp_path / name, textwrap.dedent(imports) + execute, "in_process")
        for file, text in {
            "helper.py": f"VALUE = '{value}'",
            "protocol/__init__.py": "from .places import PLACE",
            "protocol/places.py": "import helper\nPLACE = helper.VALUE + '!'",
            "parts/__init__.py": "",
            "parts/deep.py": "from helper import VALUE",
            "parts/other.py": "from .deep import VALUE",
            "json.py": "raise ImportError('what is installed comes first')",
        }.items():
            (made.version_directory / file).parent.mkdir(exist_ok=True)
            (made.version_directory / file).write_text(text + "\nimport json\njson.dumps(1)\n")
        (made.version_directory / "json.py").write_text("raise ImportError('what is installed comes first')")
        return ModelSource(name, 1, made.model_directory, made.config, ALLOWED)

    import protocol

    finders, names = list(sys.meta_path), set(sys.modules)
    for value in ("old", "renewed"):
        async with instances(source("a", f"a {value}"), 2) as both, instances(source("b", f"b {value}"), 1) as [b]:
            for name, instance in {"a": both[0], "b": b}.items():
                [response] = await infer(instance, request())
                plain, marked = f"{name} {value}".encode(), f"{name} {value}!".encode()
                assert output(response).tolist() == [plain, plain, *[marked] * 3, *[plain] * 4]
        assert sys.modules["protocol"] is protocol
        assert sys.meta_path == finders
        assert not [name for name in sys.modules.keys() - names if name.startswith("trioton_model_")]


async def test_a_preloading_process_with_threads_is_refused(tmp_path: Path) -> None:
    model = """
        import threading
        class TritonPythonModel:
            def initialize(self, args):
                threading.Thread(target=threading.Event().wait, name="helper", daemon=True).start()
    """
    with pytest.raises(Internal, match=r"initialize has started threads \(helper\)"):
        await instance_of(source_of(tmp_path, model, "fork")).load()
    assert not children()


async def test_a_preloading_process_that_ends_says_how(tmp_path: Path) -> None:
    with pytest.raises(Internal, match=r"the worker process 'm' exited with code 9 while it loaded.*\n  my words"):
        await instance_of(source_of(tmp_path, "import os\nprint('my words', flush=True)\nos._exit(9)", "fork")).load()
    assert not children()


@pytest.mark.parametrize(
    ("others", "settings", "kind", "message"),
    [
        ({"ISOLATION": "thread"}, ALLOWED, "CPU", "must be one of process, threads, fork, in_process, in_loop, got"),
        ({"ISOLATION": "in_process"}, {}, "CPU", "--backend-config=python,allow-in-process=true"),
        ({"ISOLATION": "in_loop"}, {}, "CPU", "--backend-config=python,allow-in-process=true"),
        (
            {"ISOLATION": "in_process", "ENV:A": "1", "WORKING_DIRECTORY": "1"},
            ALLOWED,
            "CPU",
            "the model cannot have ENV:A, WORKING_DIRECTORY of its own",
        ),
        ({"ISOLATION": "fork"}, {}, "GPU", "a GPU cannot be used on both sides of a fork"),
    ],
)
async def test_what_cannot_be(
    tmp_path: Path, others: Mapping[str, str], settings: Mapping[str, str], kind: str, message: str
) -> None:
    write_model(tmp_path, executing(IDENTITY))
    config = msgspec.structs.replace(CONFIG, parameters=parameters(**others))
    source = ModelSource("m", 1, tmp_path, config, settings)
    with pytest.raises(InvalidArgument) as failure:
        await PythonBackend(InstanceSpec(source, "m_0", InstanceKind[kind])).load()
    assert failure.value.message.startswith("model 'm': ")
    assert message in failure.value.message
