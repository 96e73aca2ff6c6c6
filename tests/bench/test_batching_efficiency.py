"""The measurement of batching efficiency: its model, its direct calls, its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repository.pbtxt import parse_pbtxt
from tests.bench.batching_efficiency import (
    BATCH,
    CONFIG,
    MODEL,
    WIDTH,
    Efficiency,
    direct_rate,
    open_session,
    report,
    write_repository,
)
from tests.bench.load import Row


def test_the_model_answers_each_row_by_itself(tmp_path: Path) -> None:
    """So the server may join the rows of its clients in any way."""
    session = open_session(write_repository(tmp_path))
    rows = np.random.default_rng(0).random((BATCH, WIDTH), dtype=np.float32)
    (together,) = session.run(None, {"X": rows})
    (alone,) = session.run(None, {"X": rows[3:4]})
    assert together.shape == (BATCH, WIDTH)
    np.testing.assert_allclose(together[3:4], alone, rtol=1e-4, atol=1e-5)
    assert together.std() > 0
    assert direct_rate(session, 0.01) > 0


def test_the_server_and_the_direct_calls_have_the_same_batches() -> None:
    config = parse_pbtxt(CONFIG, source=MODEL)
    assert config.max_batch_size == BATCH
    assert [group.count for group in config.instance_group] == [1]
    assert config.parameter("intra_op_thread_count") == "1"


def test_the_table_has_medians_and_the_range_of_the_rounds_ratios() -> None:
    measured = Efficiency(Row(MODEL, "grpc", 64), served=[90.0, 1900.0, 300.0], direct=[100.0, 2000.0, 400.0])
    assert measured.ratios == pytest.approx([0.9, 0.95, 0.75])
    cells = [cell.strip() for cell in report([measured]).splitlines()[-1].strip("|").split("|")]
    assert cells == ["grpc", "64", "300", "400", "0.90", "0.75 to 0.95"]
