"""Which places jobs may use: what is not below a prefix is refused, by whatever way it is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actors.jobs.data.allowed import AllowedPlaces
from actors.jobs.data.files import JobFiles
from actors.jobs.data.places import files_of, parse_place, target_of
from protocol.errors import Forbidden, InvalidArgument
from protocol.http.codec.job_rows import result_line
from protocol.jobs.source import DataFormat, DataPlace, JobSource

JSON_LINES = DataFormat.JSON_LINES


def allowed(*prefixes: object) -> AllowedPlaces:
    return AllowedPlaces([parse_place(str(prefix)) for prefix in prefixes])


@pytest.mark.parametrize("name", ["", "x", "in/*.jsonl", "**/x", "none/yet"])
def test_what_is_below_a_prefix(tmp_path: Path, name: str) -> None:
    place, within = allowed("/elsewhere", tmp_path).check(tmp_path / name)
    assert (place, within) == (tmp_path / name, tmp_path)


def test_links_are_followed_before_it_is_judged(tmp_path: Path) -> None:
    (tmp_path / "real/in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real/out").symlink_to("/")
    assert allowed(tmp_path / "link").check(tmp_path / "real/in") == (tmp_path / "real/in", tmp_path / "real")
    assert allowed(tmp_path / "real").check(tmp_path / "link/in")[0] == tmp_path / "real/in"
    for place in ("link/out/etc", "real/out", "real/../x", "real/out/*"):
        with pytest.raises(Forbidden, match="--jobs-allow-url"):
            allowed(tmp_path / "link").check(tmp_path / place)


@pytest.mark.parametrize(
    ("prefix", "place", "is_allowed"),
    [
        ("s3://b/data", "s3://b/data", True),
        ("s3://b/data/", "s3://b/data/x/*.jsonl", True),
        ("s3://b/data", "s3://b/data2", False),
        ("s3://b/data", "s3://b/data*/x", False),
        ("s3://b/data", "s3://b", False),
        ("s3://b", "s3://b/x", True),
        ("s3://b", "s3://bb/x", False),
        ("s3://b", "s3://other:9000/b/x", False),
        ("s3://b", "gs://b/x", False),
        ("as://a/b", "as://a/b/x", True),
        ("as://a/b", "as://z/b/x", False),
        ("/b", "s3://b/x", False),
        ("s3://b", "/b/x", False),
        ("/", "relative", False),
    ],
)
def test_prefixes(prefix: str, place: str, is_allowed: bool) -> None:
    if is_allowed:
        assert allowed(prefix).check(parse_place(place)) == (parse_place(place), None)
    else:
        with pytest.raises(Forbidden):
            allowed(prefix).check(parse_place(place))


def test_a_link_that_comes_later_leads_nowhere(tmp_path: Path) -> None:
    """What was judged may be exchanged before it is opened."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "results", outside):
        folder.mkdir(parents=True)
    (inside / "a.jsonl").write_text("{}")
    (outside / "secret.jsonl").write_text("{}")
    (file,) = files_of(inside / "a.jsonl", JSON_LINES, {}, inside)
    target = target_of(inside / "results", {}, inside)
    target.open()
    (inside / "a.jsonl").unlink()
    (inside / "a.jsonl").symlink_to(outside / "secret.jsonl")
    (inside / "results").rmdir()
    (inside / "results").symlink_to(outside)
    with pytest.raises(Forbidden, match="leads out of"):
        file.open()
    for call in (target.open, lambda: target.write("x", b"")):
        with pytest.raises(Forbidden, match="leads out of"):
            call()
    assert sorted(path.name for path in outside.iterdir()) == ["secret.jsonl"]


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    (file,) = files_of(tmp_path, JSON_LINES, {})
    (tmp_path / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(InvalidArgument, match="no regular file"):
        file.open()


@pytest.mark.parametrize(
    ("read", "written", "is_refused"),
    [
        ("in", "out", False),
        ("in", "in", True),
        ("in", "in/out", True),
        ("in/*", "in/out", False),
        ("in/*", "in", True),
        ("in/**", "in/out", True),
        ("in/*.txt", "in", False),
        ("in.jsonl", "", False),
        ("", "out", True),
    ],
)
@pytest.mark.parametrize("place", ["/data", "s3://data/x"])
def test_an_output_that_its_input_would_read(place: str, read: str, written: str, is_refused: bool) -> None:
    source = JobSource("m", DataPlace(f"{place}/{read}", JSON_LINES), DataPlace(f"{place}/{written}", JSON_LINES))
    files = JobFiles(allowed(place), {}, result_line)
    if is_refused:
        with pytest.raises(InvalidArgument, match="choose another folder"):
            files.check(source)
    else:
        files.check(source)
