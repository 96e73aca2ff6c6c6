"""A forest that keeps one core busy for some milliseconds in each full batch, and its direct call.

It cannot be the dense model, so its rates are compared with its own direct calls alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.dense_models import BATCH, WIDTH, DenseFormat, Rows

TREES, DEPTH, TRAINING_ROWS = 3000, 7, 600


class Forest(DenseFormat):
    """The mean of many trees over the same rows as the dense model's, walked in one thread."""

    name = "forest"
    config = f"""
backend: "fil"
max_batch_size: {BATCH}
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
parameters {{ key: "cpu_nthread" value {{ string_value: "1" }} }}
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

    def save(self, folder: Path) -> None:
        import treelite.sklearn
        from sklearn.ensemble import ExtraTreesRegressor

        random = np.random.default_rng(0)
        rows = random.random((TRAINING_ROWS, WIDTH), dtype=np.float32)
        values = random.random(TRAINING_ROWS)  # nothing to learn, so that trees grow as deep as they may
        forest = ExtraTreesRegressor(TREES, max_depth=DEPTH, max_features=1, random_state=0).fit(rows, values)
        treelite.sklearn.import_model(forest).serialize(folder / "checkpoint.tl")

    def open(self, repository: Path) -> Any:
        import treelite

        model = treelite.Model.deserialize(repository / self.name / "1" / "checkpoint.tl")

        def run(rows: Rows) -> Rows:
            found: Rows = treelite.gtil.predict(model, rows, nthread=1)[:, 0, 0].astype(np.float32)
            return found

        return run
