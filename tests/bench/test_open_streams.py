"""Open streams that answer again and again: some of them on a real server."""

from __future__ import annotations

import pytest

from tests.bench.open_streams import main


@pytest.mark.slow
def test_no_answer_of_an_open_stream_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--streams", "100", "--answers", "2"]) == 0
    assert capsys.readouterr().out.startswith("100 streams of 2 answers in ")
