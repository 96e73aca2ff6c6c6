"""The options of servers under Ray Serve: what is taken, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from trioton.ray.options import ServerOptions


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), []),
        (["--model-repository=m", "--id", "x"], ["--model-repository=m", "--id", "x"]),
        ({"model-repository": "m", "allow_gpu_metrics": False}, ["--model-repository=m", "--allow-gpu-metrics=false"]),
        ({"load-model": ["a", "b"], "log-verbose": 1}, ["--load-model=a", "--load-model=b", "--log-verbose=1"]),
    ],
)
def test_flags_as_words(flags: Any, words: list[str]) -> None:
    assert ServerOptions.parse({"flags": flags}).words() == words


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"flag": []}, "unknown field `flag`"),
        ({"http_port": "80"}, r"Expected `int`, got `str` - at `\$.http_port`"),
        ({"grpc_port": 65_536}, "'grpc_port' is a port, expected 0 to 65535, got 65536"),
        ({"drain_secs": -1}, "'drain_secs' must not be negative, got -1"),
        ({"flags": {"model-repository": None}}, "flag 'model-repository' must be a text, .* got NoneType"),
        ({"flags": ["--http-port=1"]}, "must not hold --http-port: it is the field 'http_port' of args"),
        ({"flags": {"grpc_address": "0.0.0.0"}}, "must not hold --grpc-address: it is the field 'address' of args"),
        ({"flags": ["--http-use-ssl"]}, "must not hold --http-use-ssl: end TLS at the balancer"),
        ({"flags": ["--allow-grpc=false"]}, "must not hold --allow-grpc: a replica serves HTTP, gRPC and metrics"),
        ({"flags": {"drain-secs": 3}}, "must not hold --drain-secs: it is the field 'drain_secs' of args"),
    ],
)
def test_what_is_refused(args: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        ServerOptions.parse(args)
    assert "args of trioton.ray:app" in str(raised.value)


def test_the_key_is_read_from_its_file(tmp_path: Any) -> None:
    (tmp_path / "key").write_text("secret\n")
    assert ServerOptions.parse({"key_file": str(tmp_path / "key")}).key() == "secret"
    assert ServerOptions.parse({}).key() == ""
