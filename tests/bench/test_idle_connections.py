"""What idle connections cost: a few of them on a real server, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import idle_connections
from tests.bench.held_connections import Kind, kinds
from tests.bench.idle_connections import Idle, make_certificate, measure, report
from tests.bench.peers import in_process, our_server


def test_the_report_has_a_row_for_each_kind() -> None:
    text = report([Idle("ours: gRPC, TLS", 19_440.0, 20_710.0, 0.011)])
    assert text.splitlines()[-1].split() == ["|", "ours:", "gRPC,", "TLS", "|", "19.4", "|", "20.7", "|", "1.1%", "|"]


@pytest.mark.slow
@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_connections_are_opened_answered_and_kept(
    kind: Kind, is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SETTLE_SECONDS", 0.1), ("LOOK_SECONDS", 0.1), ("FIRST", 2)):
        monkeypatch.setattr(idle_connections, name, value)
    certificate = tmp_path / "certificate.pem"
    make_certificate(certificate)
    found = measure(in_process(our_server(), tmp_path), kind, 5, tmp_path, certificate if is_tls else None)
    assert kind.name in found.label
