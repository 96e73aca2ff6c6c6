"""HAProxy's configuration, its admin socket's commands, and its answers; the real one reads the configuration."""

from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from trioton.fleet import haproxy_commands as commands
from trioton.fleet import haproxy_config
from trioton.fleet.balancer import CannotBalance, check_version
from trioton.fleet.driver import Address
from trioton.fleet.flags import SequenceSource
from trioton.fleet.haproxy_commands import CommandFailed, Role, SlotStatus
from trioton.fleet.haproxy_config import BalancerPlan, Certificates, Frontend, configuration

SCRIPT = Path(haproxy_config.__file__).with_name("sequence_id.lua")
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


def plan(folder: Path, source: SequenceSource = SequenceSource.BODY, tls: Certificates | None = None) -> BalancerPlan:
    return BalancerPlan(
        slots=3,
        http=Frontend(3, tls),
        grpc=Frontend(4, tls),
        metrics=Frontend(5),
        control_http="127.0.0.1:1000",
        control_grpc="127.0.0.1:1001",
        socket=folder / "admin.sock",
        script=SCRIPT,
        share_map=folder / "share.map",
        sequences_from=source,
    )


def section(text: str, head: str) -> list[str]:
    return text.split(f"\n{head}\n", 1)[1].split("\n\n")[0].replace("    ", "").splitlines()


def test_every_backend_has_the_same_slots(tmp_path: Path) -> None:
    text = configuration(plan(tmp_path))
    for backend in (*commands.BACKENDS, "health"):
        lines = section(text, f"backend {backend}")
        servers = [line.split()[1:5] for line in lines if line.startswith("server ")]
        assert servers == [[f"r{slot}", "127.0.0.1:1", "id", str(slot)] for slot in (1, 2, 3)]


def test_grpc_is_spoken_to_replicas_and_clients(tmp_path: Path) -> None:
    text = configuration(plan(tmp_path))
    assert "bind fd@4 proto h2" in section(text, "frontend grpc")
    assert all("proto h2" in line for line in section(text, "backend grpc") if line.startswith("server"))
    assert not any("proto h2" in line for line in section(text, "backend http"))


def test_sequences_are_kept_and_do_not_start_slowly(tmp_path: Path) -> None:
    for protocol in ("http", "grpc"):
        lines = section(configuration(plan(tmp_path)), f"backend {protocol}_sequence")
        assert "stick on var(txn.sequence) table sequences" in lines
        assert not any("slowstart" in line for line in lines)


def test_bodies_are_looked_into_only_where_it_was_asked_for(tmp_path: Path) -> None:
    assert "lua.message_sequence" in configuration(plan(tmp_path))
    text = configuration(plan(tmp_path, SequenceSource.HEADER))
    assert "http-request lua." not in text
    assert "wait-for-body" not in text
    assert "req.hdr(x-sequence-id)" in text


def test_tls_is_offered_with_http2(tmp_path: Path) -> None:
    text = configuration(plan(tmp_path, tls=Certificates(Path("/c.pem"), Path("/roots.pem"))))
    assert "bind fd@3 ssl crt /c.pem alpn h2,http/1.1 ca-file /roots.pem verify required" in text
    assert "bind fd@4 ssl crt /c.pem alpn h2 ca-file /roots.pem verify required" in text


@pytest.mark.e2e
@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")
@pytest.mark.parametrize("source", SequenceSource)
def test_haproxy_takes_the_configuration(tmp_path: Path, source: SequenceSource) -> None:
    (tmp_path / "share.map").write_text("share 0\n")
    file = tmp_path / "haproxy.cfg"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd = listener.fileno()
        text = configuration(plan(tmp_path, source))
        for number in (3, 4, 5):
            text = text.replace(f"fd@{number}", f"fd@{fd}")
        file.write_text(text)
        done = subprocess.run(
            [str(HAPROXY), "-c", "-f", str(file)], capture_output=True, text=True, pass_fds=[fd], check=False
        )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_the_check_comes_with_what_replicas_want_to_see(tmp_path: Path) -> None:
    given = replace(plan(tmp_path), check_headers=[("authorization", "Bearer a"), ("key", 'it\'s 100% "right"')])
    [line] = [line for line in section(configuration(given), "backend health") if line.startswith("http-check send")]
    assert line.endswith(r"""hdr authorization 'Bearer a' hdr key 'it'\''s 100%% "right"'""")
    assert "Bearer" not in repr(given)


def test_a_replica_is_put_into_every_backend_of_its_protocol() -> None:
    lines = commands.place(2, Address("10.0.0.1", 80, 81, 82))
    assert "set server http/r2 addr 10.0.0.1 port 80" in lines
    assert "set server grpc_sequence/r2 addr 10.0.0.1 port 81" in lines
    assert len(lines) == len(commands.BACKENDS) + 1


def test_a_canary_takes_its_share_and_sequences() -> None:
    assert commands.backends_of(Role.MEMBER) == ("http", "http_sequence", "grpc", "grpc_sequence")
    assert commands.backends_of(Role.CANARY) == ("http_canary", "http_sequence", "grpc_canary", "grpc_sequence")
    assert "set server http/r1 state maint" in commands.admit(1, Role.CANARY)


def test_the_check_says_nothing_any_more_before_a_replica_drains() -> None:
    lines = commands.drain(1)
    assert lines[0] == "disable health health/r1"
    assert "set server http/r1 state drain" in lines
    assert not any("health/r1 state" in line for line in lines)  # the others would inherit it


@pytest.mark.parametrize(
    ("share", "members", "canaries", "weight"),
    [(0.5, 1, 1, 100), (0.1, 3, 1, 33), (0.0, 3, 1, 0), (0.001, 3, 1, 1), (0.9, 3, 1, 256), (1.0, 3, 1, 100)],
)
def test_the_weight_of_a_canary_gives_it_its_share(share: float, members: int, canaries: int, weight: int) -> None:
    assert commands.canary_weight(share, members, canaries) == weight


def test_what_changes_nothing_is_no_failure() -> None:
    commands.check_answer(
        "set server a/b addr 1.2.3.4", "IP changed from '127.0.0.1' to '1.2.3.4', by 'stats socket'\n\n"
    )
    commands.check_answer("set server a/b state ready", "\n")
    with pytest.raises(CommandFailed, match="HAProxy refused 'set server a/b state ready': No such server"):
        commands.check_answer("set server a/b state ready", "No such server.\n")


def test_sessions_are_counted_over_all_backends() -> None:
    answer = (
        "# pxname,svname,scur,status,\n"
        "health,r1,0,UP,\nhttp,r1,2,UP,\ngrpc,r1,3,UP,\nhealth,r2,0,DOWN 1/2,\nhttp,r2,0,DOWN,\n"
        "control,supervisor,9,no check,\n"
    )
    assert commands.read_statuses(answer) == {1: SlotStatus(5, True), 2: SlotStatus(0, False)}


def test_an_answer_that_is_no_table_is_told() -> None:
    with pytest.raises(ValueError, match="statistics cannot be read"):
        commands.read_statuses("a,b\n1,2\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("HAProxy version 2.4.1 2020\n+LUA", "is HAProxy 2.4, expected 2.6 or newer"),
        ("HAProxy version 2.8.1 2023\n-LUA", "has no Lua"),
        ("something else", "is no HAProxy"),
    ],
)
def test_a_haproxy_that_cannot_serve_is_refused(text: str, reason: str) -> None:
    with pytest.raises(CannotBalance, match=reason):
        check_version("haproxy", text)


def test_a_good_haproxy_is_taken() -> None:
    check_version("haproxy", "HAProxy version 3.0.1-1 2024\nFeature list : +LUA")
