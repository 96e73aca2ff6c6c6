"""Exceptions of every kind, wherever a model may raise them: one error answer, and the instance lives on."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
import trio

from backends.interface import InstanceDied, ModelSource
from backends.python import PythonBackend
from protocol.errors import Internal, ServerError
from tests.backends.python.models import DECOUPLED, executing, infer, output, request, running, stream
from tests.backends.python.test_isolation import ALL_MODES, MODES, instance_of, source_of

# Models in this process raise in finalizers and threads of their own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

# What a model may raise, and how its error answer begins.
RAISES = {
    "str raises": ("raise StrRaises('x')", "StrRaises: <no text: its __str__ raised ValueError>"),
    "str raises SystemExit": ("raise StrExits('x')", "StrExits: <no text: its __str__ raised SystemExit>"),
    "str is no str": ("raise StrIsNone('x')", "StrIsNone: <no text: its __str__ raised TypeError>"),
    "str of itself": ("raise StrRecurses('x')", "StrRecurses: <no text: its __str__ raised RecursionError>"),
    "hostile text": ("raise ValueError(Text('abc'))", "ValueError: abc"),
    "hostile name": ("raise Nameless('x')", "Nameless: x"),
    "huge": ("raise ValueError('x' * 5_000_000)", "ValueError: xxx"),
    "lone surrogates": (r"raise ValueError('a\ud800b')", "ValueError: a?b"),
    "no text": ("raise ValueError", "ValueError: "),
    "base": ("raise BaseException('b')", "BaseException: b"),
    "exit": ("sys.exit(3)", "SystemExit: 3"),
    "exit with a text": ("sys.exit('enough')", "SystemExit: enough"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
    "generator exit": ("raise GeneratorExit", "GeneratorExit: "),
    "stop iteration": ("raise StopIteration(4)", "StopIteration: 4"),
    "cancelled": ("import asyncio; raise asyncio.CancelledError", "CancelledError: "),
    "group": ("raise Group()", "Group: many"),
    "syntax": ("raise SyntaxError('s', (5, 6, 7, 8))", "SyntaxError: s"),
    "cause": ("raise ValueError('v') from StrRaises('x')", "ValueError: v"),
}
# What a model may return, and what the error answer has.
RETURNS = {
    "number": ("return 7", "Expected a list in the execute return"),
    "text": ("return 'abc'", "Expected a list in the execute return"),
    "too few": ("return []", "do not match"),
    "no responses": ("return [7] * len(requests)", "Expected an 'InferenceResponse' object"),
    "unfinished response": ("return [Unfinished()] * len(requests)", "AttributeError: "),
    "hostile class": ("return [Hostile()] * len(requests)", "ValueError: no class"),
    "hostile elements": ("return [answer(np.array([Hostile()], np.object_))]", ""),
}
PRELUDE = """
class StrRaises(Exception):
    def __str__(self): raise ValueError("no text")
class StrExits(Exception):
    def __str__(self): raise SystemExit(1)
    __repr__ = __str__
class StrIsNone(Exception):
    def __str__(self): return None
    __repr__ = __str__
class StrRecurses(Exception):
    def __str__(self): return str(self)
class Text(str):
    def __len__(self): raise ValueError("no length")
    def __str__(self): return self
    def __format__(self, spec): raise ValueError("no format")
    def __getitem__(self, key): raise ValueError("no items")
class Meta(type):
    @property
    def __name__(cls): raise ValueError("no name")
class Nameless(Exception, metaclass=Meta):
    pass
class Group(Exception):
    def __str__(self): return "many"
    @property
    def exceptions(self): raise ValueError("no exceptions")
class Unfinished(pb_utils.InferenceResponse):
    def __init__(self): pass
class Hostile:
    @property
    def __class__(self): raise ValueError("no class")
    def __str__(self): raise ValueError("no text")
    __repr__ = __bytes__ = __len__ = __str__
    def __del__(self): raise StrRaises()
ONE = np.ones((1, 1), np.float32)
"""


def model(cases: dict[str, tuple[str, str]], *, is_async: bool = False) -> str:
    lines = [f"if requests[0].request_id() == {name!r}:\n    {body}" for name, (body, _) in cases.items()]
    text = executing("\n".join([*lines, "return [answer(r.inputs()[0].as_numpy()) for r in requests]"]))
    text = text.replace("class TritonPythonModel", f"{PRELUDE}\nclass TritonPythonModel")
    return text.replace("def execute", "async def execute") if is_async else text


async def lives(instance: PythonBackend) -> None:
    assert output((await infer(instance, request((3.0,))))[0]).tolist() == [[3.0]]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("mode", ALL_MODES)
async def test_an_exception_is_one_error_answer(tmp_path: Path, mode: str, is_async: bool) -> None:
    if is_async and mode == "in_loop":
        return  # which has no coroutines
    source = source_of(tmp_path, model(RAISES, is_async=is_async), mode)
    with trio.fail_after(60):
        async with running(instance_of(source)) as instance:
            for name, (_, beginning) in RAISES.items():
                with pytest.raises(Internal) as failure:
                    await infer(instance, request(id=name))
                if is_async and name == "stop iteration":  # as Python has it
                    beginning = "RuntimeError: coroutine raised StopIteration"
                _, _, told = failure.value.message.partition("message: ")
                assert told.startswith(beginning), (name, told[:200])
                assert len(told) < 100_000
                told.encode()
                await lives(instance)


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_what_is_returned_wrongly_is_one_error_answer(tmp_path: Path, mode: str) -> None:
    with trio.fail_after(60):
        async with running(instance_of(source_of(tmp_path, model(RETURNS), mode))) as instance:
            for name, (_, part) in RETURNS.items():
                with pytest.raises(Internal) as failure:
                    await infer(instance, request(id=name))
                assert part in failure.value.message, name
                await lives(instance)


@pytest.mark.parametrize("mode", ALL_MODES)
async def test_an_error_that_speaks_for_itself_is_not_asked(tmp_path: Path, mode: str) -> None:
    """A TritonError's methods are the model's where it has a class of its own; and its text may be long."""
    text = executing("""
        class Mine(pb_utils.TritonError):
            def message(self): return 5
            def code(self): return "x"
        texts = {"": "plain", "long": "x" * 5_000_000, "surrogate": "a\\ud800b"}
        if requests[0].request_id() == "sent":
            requests[0].get_response_sender().send(pb_utils.InferenceResponse(error=Mine("by sender")), FINAL)
            return None
        return [pb_utils.InferenceResponse(error=Mine(texts[r.request_id()])) for r in requests]
    """)
    with trio.fail_after(30):
        async with running(instance_of(source_of(tmp_path, text, mode))) as instance:
            for id, expected in (("", "plain"), ("long", "xxx"), ("surrogate", "a?b"), ("sent", "by sender")):
                [answer] = await infer(instance, request(id=id))
                assert isinstance(answer, ServerError)
                assert answer.message.startswith(expected)
                assert len(answer.message) < 100_000


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("raised", ["raise StrRaises()", "sys.exit(3)", "raise ValueError('x' * 5_000_000)"])
async def test_a_decoupled_model_and_its_threads(
    tmp_path: Path, mode: str, raised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `execute` raises ends its requests with that, a thread that raises lets go of its request."""
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest's keeps what the thread has held
    text = executing(f"""
        sender = requests[0].get_response_sender()
        def work(sender):
            sender.send(answer(ONE))
            {raised}
        if requests[0].request_id() == "thread":
            threading.Thread(target=work, args=(sender,)).start()
            return None
        if requests[0].request_id() == "execute":
            {raised}
        sender.send(answer(ONE), FINAL)
    """).replace("class TritonPythonModel", f"{PRELUDE}\nclass TritonPythonModel")
    with trio.fail_after(30):
        async with running(instance_of(source_of(tmp_path, text, mode, DECOUPLED))) as instance:
            for id in ("thread", "execute", ""):
                with trio.fail_after(10):
                    try:
                        [receiver] = await stream(instance, request(id=id))
                        error: Exception | None = receiver.error
                    except Internal as failure:
                        error = failure
                assert (error is None) == (id == "")


class Phases:
    """A model that raises where it is told."""

    TEXT = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
{prelude}
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {complete}
        return config
    def initialize(self, args):
        {initialize}
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
    def is_ready(self):
        {is_ready}
        return True
    def finalize(self):
        {finalize}
    def __del__(self):
        raise StrRaises()
"""

    @classmethod
    def source(cls, directory: Path, mode: str, **what: str) -> ModelSource:
        places = dict.fromkeys(("complete", "initialize", "is_ready", "finalize"), "pass")
        return source_of(directory, cls.TEXT.format(prelude=PRELUDE, **{**places, **what}), mode)


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("name", ["str raises", "exit", "huge", "base"])
async def test_the_other_phases(tmp_path: Path, mode: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A load fails with the text, `is_ready` is false, `finalize` is told to the log."""
    caplog.set_level(logging.WARNING, "trioton")
    raised, beginning = RAISES[name]
    with trio.fail_after(60):
        failing = instance_of(Phases.source(tmp_path / "load", mode, initialize=raised))
        with pytest.raises(Internal) as failure:
            await failing.load()
        await failing.unload()
        assert beginning in failure.value.message
        with pytest.raises(Internal) as failure:
            await PythonBackend.complete_config(Phases.source(tmp_path / "complete", mode, complete=raised))
        assert beginning in failure.value.message
        async with running(instance_of(Phases.source(tmp_path, mode, is_ready=raised, finalize=raised))) as instance:
            assert not await instance.is_ready()
            await lives(instance)
    said = [record.getMessage() for record in caplog.records]
    assert any(beginning in line for line in said if "finalize failed" in line)


async def test_a_task_that_exits_leaves_the_loop_running(tmp_path: Path) -> None:
    """asyncio lets SystemExit through to whoever runs the loop."""
    text = executing("""
        import asyncio
        async def leave(): sys.exit(3)
        if requests[0].request_id():
            asyncio.ensure_future(leave())
            await asyncio.sleep(0.01)
        return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """).replace("def execute", "async def execute")
    for mode in MODES:
        with trio.fail_after(20):
            async with running(instance_of(source_of(tmp_path, text, mode))) as instance:
                await infer(instance, request(id="exit"))
                await lives(instance)


async def test_a_loop_that_fails_itself_ends_the_instance(tmp_path: Path) -> None:
    text = executing("""
        import asyncio
        asyncio.get_running_loop()._selector.select = lambda seconds: 1 / 0
        await asyncio.sleep(1000)
    """).replace("def execute", "async def execute")
    for mode in MODES:
        with trio.fail_after(20):
            async with running(instance_of(source_of(tmp_path, text, mode))) as instance:
                with pytest.raises(InstanceDied):
                    await infer(instance, request())
