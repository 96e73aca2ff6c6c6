"""`forest` as a treelite checkpoint, for the backend `fil`. Needs the package treelite.

A forest is seldom written by hand: XGBoost and LightGBM save files that the backend reads as they are, and
`treelite.sklearn.import_model` makes a checkpoint of a forest of scikit-learn.
"""

from __future__ import annotations

from pathlib import Path

import three_models
import treelite
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

FOREST = """
backend: "fil"
max_batch_size: 8
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
parameters [
  { key: "model_type" value { string_value: "treelite_checkpoint" } },
  { key: "is_classifier" value { string_value: "true" } },
  { key: "predict_proba" value { string_value: "true" } }
]
dynamic_batching { }
"""


def forest(folder: Path) -> None:
    save(folder, build(three_models.Trees()), FOREST)


def build(trees: three_models.Trees) -> treelite.Model:
    count, classes = len(trees.features), three_models.TREE_CLASSES
    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(
            num_feature=three_models.FEATURES,
            task_type="kMultiClf",
            average_tree_output=True,
            num_target=1,
            num_class=[classes],
            leaf_vector_shape=(1, classes),
        ),
        tree_annotation=TreeAnnotation(num_tree=count, target_id=[0] * count, class_id=[-1] * count),
        postprocessor=PostProcessorFunc(name="identity_multiclass"),
        base_scores=[0.0] * classes,
    )
    for features, thresholds, leaves in zip(trees.features, trees.thresholds, trees.leaves, strict=True):
        builder.start_tree()
        for node in range(3):  # the root and its two children; their children are the leaves 3 to 6
            builder.start_node(node)
            builder.numerical_test(
                feature_id=int(features[node]),
                threshold=float(thresholds[node]),
                default_left=True,
                opname="<",
                left_child_key=2 * node + 1,
                right_child_key=2 * node + 2,
            )
            builder.end_node()
        for number, leaf in enumerate(leaves):
            builder.start_node(3 + number)
            builder.leaf(leaf.tolist())
            builder.end_node()
        builder.end_tree()
    return builder.commit()


def save(folder: Path, model: treelite.Model, config: str) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    model.serialize(folder / "1" / "checkpoint.tl")
    (folder / "config.pbtxt").write_text(config.lstrip())
