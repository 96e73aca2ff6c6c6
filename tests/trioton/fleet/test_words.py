"""The command line of a fleet, taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.flags.fields import UsageError
from trioton.fleet.checks import check_change, check_settings
from trioton.fleet.flags import Probe, Signal
from trioton.fleet.words import ServerWords, fleet_words


def test_the_fleets_own_flags_do_not_reach_its_replicas() -> None:
    words = [
        "--replicas=3",
        "models",
        "--http-port",
        "9000",
        "--scale-by=queue",
        "--model-repository=other",
        "--console",
    ]
    flags, servers = fleet_words(words, {})
    assert (flags.replicas, flags.scale_by) == (3, Signal.QUEUE)
    assert servers == ServerWords(("models", "other"), ("--http-port=9000", "--console=true"))


def test_probes_are_repeatable() -> None:
    flags, _ = fleet_words(["m", "--update-probe=/v2/models/m/ready", "--update-probe=/v2/models/m/infer@a.json"], {})
    assert flags.update_probe == (Probe("/v2/models/m/ready"), Probe("/v2/models/m/infer", Path("a.json")))


def test_the_environment_is_read_and_the_command_line_wins() -> None:
    environment = {"TRIOTON_REPLICAS": "4", "TRIOTON_FLEET_PORT": "9"}
    flags, _ = fleet_words(["m", "--replicas=5"], environment)
    assert (flags.replicas, flags.fleet_port) == (5, 9)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m", "--replicas=9"], "--replicas must lie within --min-replicas and --max-replicas, expected 1 to 8, got 9"),
        (["m", "--replicas=0"], "--replicas: expected a whole number from 1 to 64, got '0'"),
        (["m", "--update-probe=x"], "--update-probe: expected /<path> or /<path>@<file>, got 'x'"),
        (["m", "--no-such-flag"], 'Bad option: "--no-such-flag".'),
    ],
)
def test_what_is_wrong_is_told(words: list[str], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        fleet_words(words, {})
    assert str(raised.value).startswith(text)


def test_flags_are_added_and_repositories_replaced() -> None:
    words = ServerWords(("models",), ("--log-verbose=1",))
    changed = words.changed(flags=["--log-verbose", "2"], repositories=["others"], command=["/opt/new/bin/trioton"])
    assert changed == ServerWords(("others",), ("--log-verbose=1", "--log-verbose=2"), ("/opt/new/bin/trioton",))
    assert words.changed() == words


@pytest.mark.parametrize("flags", [["--model-repository=x"], ["x"], ["--replicas=3"]])
def test_only_flags_of_servers_are_taken(flags: list[str]) -> None:
    with pytest.raises(UsageError):
        ServerWords(("models",)).changed(flags=flags)


def test_flags_are_left_out_by_their_names() -> None:
    words = ServerWords(("models",), ("--http-port=1", "--http-port-other=2", "--console=true"))
    assert words.without(frozenset({"http-port"})).flags == ("--http-port-other=2", "--console=true")


def test_a_server_reads_its_words(tmp_path: Path) -> None:
    settings = ServerWords((str(tmp_path),), ("--http-port=1", "--http-port=2")).settings({})
    assert settings.http_port == 2


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--allow-grpc=false"], "a fleet serves both HTTP and gRPC"),
        (["--openai-port=1"], "a fleet has no --openai-port"),
        (["--allow-sagemaker=true"], "a fleet has no --allow-sagemaker"),
        (["--allow-vertex-ai=true"], "a fleet has no --allow-vertex-ai"),
        (["--jobs-store=/jobs"], "a fleet's jobs are kept where all of its servers find them"),
        (["--auth-keys-file=/keys"], "--auth-keys-file needs --fleet-key-file"),
    ],
)
def test_what_is_of_one_server_alone_is_refused(tmp_path: Path, more: list[str], text: str) -> None:
    flags, words = fleet_words([str(tmp_path), *more], {})
    routes = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    with pytest.raises(UsageError) as raised:
        check_settings(words.settings(routes), flags)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["--http-port=9000"], "--http-port is"),
        (["--grpc-address=::", "--drain-secs=9"], "--drain-secs, --grpc-address are"),
        (["--http-restricted-api=health:a=b"], "--http-restricted-api is"),
    ],
)
def test_an_update_cannot_change_what_is_the_fleets(tmp_path: Path, more: list[str], names: str) -> None:
    words = ServerWords((str(tmp_path),), ("--http-port=8100",))
    with pytest.raises(UsageError) as raised:
        check_change(words.settings({}), words.changed(flags=more).settings({}))
    assert str(raised.value) == f"{names} set when the fleet starts, and cannot be changed by an update or a canary"


def test_an_update_may_repeat_what_is_the_fleets(tmp_path: Path) -> None:
    words = ServerWords((str(tmp_path),), ("--http-port=8100",))
    check_change(words.settings({}), words.changed(flags=["--http-port=8100", "--log-verbose=1"]).settings({}))
