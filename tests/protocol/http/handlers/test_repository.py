"""Index, load and unload, called through the application."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from protocol.core import LoadParameters, ModelRepository
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


async def post(core: FakeCore, path: str, body: Any = None) -> Answer:
    text = b"" if body is None else json.dumps(body).encode()
    return await call(HttpApp(make_services(core), HttpSettings()), "POST", path, text)


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/anything/index"])
async def test_the_index_leaves_out_what_is_not_known(path: str) -> None:
    answer = await post(FakeCore(), path)
    assert answer.json == [
        {"name": "echo", "version": "1", "state": "READY"},
        {"name": "bad", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "never"},
    ]


@pytest.mark.parametrize(("body", "ready"), [(None, False), ({}, False), ({"ready": True}, True)])
async def test_the_index_of_ready_models(body: Any, ready: bool) -> None:
    core = FakeCore()
    answer = await post(core, "/v2/repository/index", body)
    assert core.calls == [("index", ready)]
    assert len(answer.json) == (1 if ready else 3)


@pytest.mark.parametrize("value", [1, "true", None])
async def test_an_index_with_another_ready(value: Any) -> None:
    answer = await post(FakeCore(), "/v2/repository/index", {"ready": value})
    assert (answer.status, answer.error) == (400, "Invalid value for 'ready': expected a boolean")


@pytest.mark.parametrize("body", [None, {}, {"parameters": {}}, {"parameters": None, "other": 1}])
async def test_a_plain_load(body: Any) -> None:
    core = FakeCore()
    answer = await post(core, LOAD, body)
    assert (answer.status, answer.body) == (200, b"")
    assert core.calls == [("load", "m", LoadParameters())]


async def test_a_load_with_overrides() -> None:
    """Files come as base64 and arrive as bytes, under their paths."""
    core = FakeCore()
    content = bytes(range(256))
    parameters = {
        "config": '{"backend":"python"}',
        "file:1/model.py": base64.b64encode(content).decode(),
        "file:1/empty": "",
    }
    assert (await post(core, LOAD, {"parameters": parameters})).status == 200
    expected = LoadParameters('{"backend":"python"}', {"1/model.py": content, "1/empty": b""})
    assert core.calls == [("load", "m", expected)]


async def test_a_load_with_long_files() -> None:
    """Decoded in slices, from the body."""
    core, contents = FakeCore(), {"1/model.onnx": bytes(range(256)) * 1000, "1/short": b"x"}
    files = {f"file:{name}": base64.b64encode(content).decode() for name, content in contents.items()}
    config = "{" + " " * 200_000 + "}"
    assert (await post(core, LOAD, {"parameters": {"config": config, **files}})).status == 200
    assert core.calls == [("load", "m", LoadParameters(config, contents))]
    for wrong, text in (
        ({**files, "file:1/x": "A" * 200_001}, "Load parameter 'file:1/x' must be the file's content in base64: "),
        ({**files, "x": "A" * 200_000}, "Unrecognized load parameter 'x' with type 'str'"),
        ({**files, "A" * 200_000: 1}, "Unrecognized load parameter 'AAAA"),
        ("A" * 200_000, "Unable to parse 'parameters': attempt to access JSON non-object as object, got str"),
    ):
        answer = await post(core, LOAD, {"parameters": wrong})
        assert (answer.status, answer.error[: len(text)]) == (400, text)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"config": 5}, "Unable to parse 'config': attempt to access JSON non-string as string, got 5"),
        (
            {"file:1/x": {"a": 1}},
            "Unable to parse 'file:1/x': attempt to access JSON non-string as string, got {'a': 1}",
        ),
        ({"file:1/x": "abc"}, "Load parameter 'file:1/x' must be the file's content in base64: Incorrect padding"),
        ({"file:1/x": "a b="}, "Load parameter 'file:1/x' must be the file's content in base64: "),
        ({"file:1/x": "größe"}, "Load parameter 'file:1/x' must be the file's content in base64: "),
        ({"x": "y"}, "Unrecognized load parameter 'x' with type 'str'"),
        ([], "Unable to parse 'parameters': attempt to access JSON non-object as object, got array"),
    ],
)
async def test_wrong_load_parameters(parameters: Any, text: str) -> None:
    core = FakeCore()
    answer = await post(core, LOAD, {"parameters": parameters})
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert core.calls == []


@pytest.mark.parametrize(
    ("body", "dependents"),
    [(None, False), ({"parameters": {}}, False), ({"parameters": {"unload_dependents": True}}, True)],
)
async def test_unload(body: Any, dependents: bool) -> None:
    core = FakeCore()
    answer = await post(core, UNLOAD, body)
    assert (answer.status, answer.body) == (200, b"")
    assert core.calls == [("unload", "m", dependents)]


async def test_unload_with_another_flag() -> None:
    answer = await post(FakeCore(), UNLOAD, {"parameters": {"unload_dependents": "yes"}})
    assert (answer.status, answer.error) == (
        400,
        "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean, got 'yes'",
    )


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_a_repository_name_is_refused(verb: str) -> None:
    answer = await post(FakeCore(), f"/v2/repository/r/models/m/{verb}")
    assert (answer.status, answer.error) == (501, "'repository_name' specification is not supported")


@pytest.mark.parametrize("path", [LOAD, UNLOAD, "/v2/repository/index"])
async def test_broken_json(path: str) -> None:
    answer = await call(HttpApp(make_services(), HttpSettings()), "POST", path, b'{"parameters":')
    assert (answer.status, answer.error) == (
        400,
        "failed to parse the request JSON buffer: Input data was truncated at 14",
    )


async def test_repositories_are_listed() -> None:
    answer = await call(HttpApp(make_services(FakeCore()), HttpSettings()), "GET", "/v2/repository")
    assert answer.json == [{"path": "/models"}, {"path": "/more", "model_names": {"a": "b"}}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"path": "/x"}, ("register", ModelRepository("/x"))),
        ({"path": "/x", "model_names": None, "other": 1}, ("register", ModelRepository("/x"))),
        ({"path": "/x", "model_names": {"m": "n"}}, ("register", ModelRepository("/x", {"m": "n"}))),
    ],
)
async def test_a_repository_is_registered(body: Any, expected: Any) -> None:
    core = FakeCore()
    answer = await post(core, "/v2/repository/register", body)
    assert (answer.status, answer.body) == (200, b"")
    assert core.calls == [expected]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Unable to parse 'path': attempt to access JSON non-string as string, got None"),
        ({"path": 1}, "Unable to parse 'path'"),
        ({"path": "/x", "model_names": ["m"]}, "Unable to parse 'model_names': expected an object"),
        ({"path": "/x", "model_names": {"m": 1}}, "Unable to parse 'model_names': expected an object"),
    ],
)
async def test_registrations_that_are_none(body: Any, text: str) -> None:
    core = FakeCore()
    answer = await post(core, "/v2/repository/register", body)
    assert answer.status == 400
    assert text in answer.error
    assert core.calls == []


async def test_a_repository_is_dropped() -> None:
    core = FakeCore()
    assert (await post(core, "/v2/repository/unregister", {"path": "/x"})).status == 200
    assert core.calls == [("unregister", "/x")]
    assert (await post(core, "/v2/repository/unregister", {})).status == 400


@pytest.mark.parametrize("coding", [None, "gzip"])
@pytest.mark.parametrize(
    "path", ["/v2/repository/index", UNLOAD, "/v2/logging", "/v2/trace/setting", "/v2/repository/register"]
)
async def test_a_body_that_only_says_what_to_change_is_short(path: str, coding: str | None) -> None:
    text = b'{"parameters": [' + b"[]," * (1 << 20) + b"1]}"
    headers = {} if coding is None else {"content-encoding": coding}
    body = text if coding is None else gzip.compress(text)
    core = FakeCore()
    answer = await call(HttpApp(make_services(core), HttpSettings()), "POST", path, body, headers)
    assert answer.status == 413
    assert core.calls == []


async def test_a_load_of_too_many_values_is_refused() -> None:
    core = FakeCore()
    answer = await post(core, LOAD, {"parameters": {"config": [[]] * (1 << 17)}})
    assert (answer.status, answer.error) == (413, "the body has more than 16384 JSON values, the maximum")
    assert core.calls == []
