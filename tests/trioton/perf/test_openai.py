"""OpenAI's routes and TLS: token streams of a scripted engine, and certificates of our own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.backends.engines.models import write_scripted
from tests.trioton.perf.repository import flags, write_models
from tests.trioton.perf.test_session import SHORT, target_of
from trioton.perf.caller import TargetError
from trioton.perf.data.model_data import ModelData
from trioton.perf.data.payloads import Form
from trioton.perf.data.prompts import Prompts
from trioton.perf.data.sources import Sources
from trioton.perf.load import Closed, Goodput
from trioton.perf.session import measure, open_session
from trioton.perf.target import Target, Wire
from trioton.server import Settings, open_server

pytestmark = pytest.mark.slow


async def test_tokens_of_completions_are_counted_and_timed(tmp_path: Path) -> None:
    write_scripted(tmp_path)
    (name, *_) = sorted(os.listdir(tmp_path))
    prompts = Prompts(count=4, words=8, max_tokens=10, is_chat=False)
    data = ModelData(sources=Sources(prompts=prompts), form=Form.OPENAI)
    with trio.fail_after(60):
        async with open_server(Settings.from_flags(flags(tmp_path))) as server:
            target = target_of(server, Wire.OPENAI, name)
            async with open_session(target, data, goodput=Goodput(first=30.0)) as session:
                found = await session.measure(Closed(2), replace(SHORT, most_seconds=1.0))
    figures = found.figures
    assert figures.errors == {}
    assert figures.succeeded > 2
    assert figures.good == figures.succeeded
    assert figures.tokens >= figures.responses >= figures.succeeded
    assert figures.first.count == figures.succeeded
    assert figures.first.percentile(50) <= figures.latency.percentile(50)


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[Path, list[str]]:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {name: tmp_path / name for name in ("ca.pem", "key.pem", "cert.pem")}
    authority.cert_pem.write_to_path(files["ca.pem"])
    issued.private_key_pem.write_to_path(files["key.pem"])
    issued.cert_chain_pems[0].write_to_path(files["cert.pem"])
    words = ["--http-use-ssl=true", "--grpc-use-ssl=true"]
    words += [f"--http-server-cert={files['cert.pem']}", f"--http-server-key={files['key.pem']}"]
    words += [f"--grpc-server-cert={files['cert.pem']}", f"--grpc-server-key={files['key.pem']}"]
    return files["ca.pem"], words


@pytest.mark.parametrize("wire", [Wire.HTTP, Wire.GRPC, Wire.STREAM])
async def test_over_tls(tmp_path: Path, wire: Wire, certificates: tuple[Path, list[str]]) -> None:
    authority, words = certificates
    write_models(tmp_path / "models")
    with trio.fail_after(60):
        async with open_server(Settings.from_flags([*flags(tmp_path / "models"), *words])) as server:
            plain = target_of(server, wire)
            trusting: Target = replace(plain, tls=True, ca_file=str(authority), metrics_url="none")
            found = await measure(trusting, Closed(3), ends=SHORT)
            with pytest.raises(TargetError, match="TLS failed"):
                await measure(replace(trusting, ca_file=""), Closed(1), ends=SHORT)
    assert found.figures.errors == {}
    assert found.figures.succeeded > 20
    assert found.figures.in_flight == pytest.approx(3, rel=0.001)
