"""The measurement of batching efficiency: its model, its direct calls, its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repository.pbtxt import parse_pbtxt
from tests.bench.batching_efficiency import Efficiency, direct_rate, report, write_repository
from tests.bench.dense_models import BATCH, FORMATS, WIDTH, DenseFormat
from tests.bench.forest_model import Forest
from tests.bench.rows import Row
from tests.bench.tensorflow_model import DenseTensorFlow

DENSE = (*FORMATS, DenseTensorFlow())


@pytest.mark.parametrize("form", DENSE, ids=lambda form: form.name)
def test_the_model_answers_each_row_by_itself(form: DenseFormat, tmp_path: Path) -> None:
    """So the server may join the rows of its clients in any way; and all formats answer the same."""
    run = form.open(write_repository(tmp_path, [form]))
    rows = np.random.default_rng(0).random((BATCH, WIDTH), dtype=np.float32)
    together, alone = run(rows), run(rows[3:4])
    assert together.shape == (BATCH, WIDTH)
    np.testing.assert_allclose(together[3:4], alone, rtol=1e-4, atol=1e-5)
    assert together.std() > 0
    assert direct_rate(run, 0.01) > 0
    first = FORMATS[0].open(write_repository(tmp_path / "first", FORMATS[:1]))
    np.testing.assert_allclose(together, first(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", DENSE, ids=lambda form: form.name)
def test_the_server_and_the_direct_calls_have_the_same_batches(form: DenseFormat) -> None:
    config = parse_pbtxt(form.config, source=form.name)
    assert config.max_batch_size == BATCH
    assert [group.count for group in config.instance_group] == [1]
    threads = ("intra_op_thread_count", "INTRA_OP_THREAD_COUNT", "INFERENCE_NUM_THREADS", "TF_NUM_INTRA_THREADS")
    assert "1" in [config.parameter(key) for key in threads] or form.flags == ("--backend-config=jax,cpu-threads=1",)


def test_the_forest_answers_each_row_by_itself_in_one_thread(tmp_path: Path) -> None:
    form = Forest()
    run = form.open(write_repository(tmp_path, [form]))
    rows = np.random.default_rng(0).random((BATCH, WIDTH), dtype=np.float32)
    together = run(rows)
    assert together.shape == (BATCH,)
    assert together.std() > 0
    assert together[3:4].tolist() == run(rows[3:4]).tolist()
    assert direct_rate(run, 0.01) > 0
    config = parse_pbtxt(form.config, source=form.name)
    assert config.max_batch_size == BATCH
    assert [group.count for group in config.instance_group] == [1]
    assert config.parameter("cpu_nthread") == "1"


def test_the_table_has_medians_and_the_range_of_the_rounds_ratios() -> None:
    measured = Efficiency(Row("onnx", "grpc", 64), served=[90.0, 1900.0, 300.0], direct=[100.0, 2000.0, 400.0])
    assert measured.ratios == pytest.approx([0.9, 0.95, 0.75])
    cells = [cell.strip() for cell in report([measured]).splitlines()[-1].strip("|").split("|")]
    assert cells == ["onnx", "grpc", "64", "300", "400", "0.90", "0.75 to 0.95"]
