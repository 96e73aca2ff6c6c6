"""What the backend answers by each parameter, compared with the frameworks that trained the forests."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("treelite")
lightgbm = pytest.importorskip("lightgbm")
sklearn_ensemble = pytest.importorskip("sklearn.ensemble")
xgboost = pytest.importorskip("xgboost")

import joblib  # noqa: E402 (where scikit-learn is, it is)
import treelite.sklearn  # noqa: E402

from backends.fil import FilBackend  # noqa: E402
from backends.interface import InstanceSpec  # noqa: E402
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, Unsupported  # noqa: E402
from repository.model_config import InstanceKind  # noqa: E402
from tests.backends.conformance.serving import model_of, serving  # noqa: E402
from tests.backends.fil.forests import CLASSES, FEATURES, lightgbm_booster, training_rows, xgboost_booster  # noqa: E402
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of  # noqa: E402

ROWS = np.random.default_rng(5).standard_normal((40, FEATURES)).astype(np.float32)
ROWS[::7, 0] = np.nan


def config_of(dims: str, parameters: Mapping[str, str], *, extra: str = "") -> str:
    entries = ", ".join(f'{{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items())
    return f"""
backend: "fil"
max_batch_size: 64
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ {FEATURES} ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 {dims} }} ]
parameters [ {entries} ]
{extra}
"""


def folder_of(path: Path, save: Callable[[Path], object], filename: str) -> Path:
    (path / "1").mkdir(parents=True)
    save(path / "1" / filename)
    return path


def spec_for(folder: Path, config: str, *, kind: InstanceKind = InstanceKind.CPU, **settings: str) -> InstanceSpec:
    named = {key.replace("_", "-"): value for key, value in settings.items()}
    return spec_of(source_of(config, folder, settings=named), kind=kind)


async def answers(spec: InstanceSpec, rows: NDArray[Any] = ROWS) -> NDArray[Any]:
    """What one request of these rows is answered."""
    await FilBackend.check_model(spec.source)
    async with loaded(FilBackend, spec) as backend:
        (response,) = await infer(backend, request_of(("input__0", rows)))
        return answer(response)["output__0"]


async def refusal(spec: InstanceSpec) -> ServerError:
    with pytest.raises(ServerError) as caught:
        await answers(spec)
    assert "'m'" in caught.value.message
    return caught.value


CLASS = {"is_classifier": "true"}
PROBABILITIES = {"is_classifier": "true", "predict_proba": "true"}


@pytest.mark.parametrize("threshold", ["", "0.3", "0.9", "1e-6"])
async def test_a_class_of_two_is_by_the_threshold_and_has_no_dimension_of_its_own(
    threshold: str, tmp_path: Path
) -> None:
    booster = xgboost_booster("binary:logistic")
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.json")
    parameters = {"model_type": "xgboost_json", **CLASS, **({"threshold": threshold} if threshold else {})}
    found = await answers(spec_for(folder, config_of("dims: [ 1 ]", parameters)))
    expected = booster.predict(xgboost.DMatrix(ROWS)) > float(threshold or 0.5)
    assert found.dtype == np.float32
    assert found.tolist() == expected.astype(np.float32).tolist()


async def test_a_reshape_keeps_the_dimension(tmp_path: Path) -> None:
    booster = xgboost_booster("binary:logistic")
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.json")
    found = await answers(spec_for(folder, config_of("dims: [ 1 ] reshape { shape: [ ] }", CLASS)))
    assert found.shape == (len(ROWS), 1)


async def test_every_request_of_a_batch_gets_its_own_classes(tmp_path: Path) -> None:
    booster = xgboost_booster("multi:softprob")
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.json")
    expected = booster.predict(xgboost.DMatrix(ROWS)).argmax(axis=1)
    async with loaded(FilBackend, spec_for(folder, config_of("dims: [ 1 ]", CLASS))) as backend:
        parts = np.split(ROWS, [1, 5, 30])
        found = await infer(backend, *(request_of(("input__0", part)) for part in parts))
    each = [answer(response)["output__0"] for response in found]
    assert [len(part) for part in each] == [1, 4, 25, 10]
    assert np.concatenate(each).tolist() == expected.tolist()


@pytest.mark.parametrize(("dims", "columns"), [("dims: [ 1 ]", [1]), ("dims: [ 2 ]", [0, 1])])
@pytest.mark.parametrize("framework", ["xgboost", "lightgbm", "forest", "boosting"])
async def test_probabilities_of_two_classes(framework: str, dims: str, columns: list[int], tmp_path: Path) -> None:
    """The second's, or both; whether the file has one score for them or two."""
    if framework in ("forest", "boosting"):
        kind = "RandomForestClassifier" if framework == "forest" else "HistGradientBoostingClassifier"
        trained = getattr(sklearn_ensemble, kind)(max_depth=3, random_state=0).fit(*training_rows(2))
        saved, name = treelite.sklearn.import_model(trained).serialize, "checkpoint.tl"
        rows = np.nan_to_num(ROWS)
        expected = trained.predict_proba(rows)
    else:
        booster = xgboost_booster("binary:logistic") if framework == "xgboost" else lightgbm_booster("binary")
        saved, name = booster.save_model, "xgboost.ubj" if framework == "xgboost" else "model.txt"
        rows = ROWS
        positive = booster.predict(xgboost.DMatrix(rows) if framework == "xgboost" else rows)
        expected = np.stack([1 - positive, positive], axis=1)
    folder = folder_of(tmp_path / "m", saved, name)
    found = await answers(spec_for(folder, config_of(dims, PROBABILITIES)), rows)
    wanted = expected[:, columns].astype(np.float32)
    np.testing.assert_allclose(found, wanted[:, 0] if len(columns) == 1 else wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("objective", ["reg:squarederror", "count:poisson", "rank:pairwise", "binary:logistic"])
async def test_what_is_no_classifier_answers_its_value(objective: str, tmp_path: Path) -> None:
    """A classifier that is not to be one, too: its score."""
    booster = xgboost_booster(objective)
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.ubj")
    found = await answers(spec_for(folder, config_of("dims: [ 1 ]", {"is_classifier": "false"})))
    np.testing.assert_allclose(found, booster.predict(xgboost.DMatrix(ROWS)), rtol=1e-5, atol=1e-6)


async def test_the_file_tells_whether_it_is_a_classifier_where_nothing_else_does(tmp_path: Path) -> None:
    regressor, classifier = xgboost_booster("reg:squarederror"), xgboost_booster("binary:logistic")
    values = folder_of(tmp_path / "values", regressor.save_model, "xgboost.ubj")
    classes = folder_of(tmp_path / "classes", classifier.save_model, "xgboost.ubj")
    found = await answers(spec_for(values, config_of("dims: [ 1 ]", {})))
    np.testing.assert_allclose(found, regressor.predict(xgboost.DMatrix(ROWS)), rtol=1e-5)
    assert set(await answers(spec_for(classes, config_of("dims: [ 1 ]", {})))) == {0.0, 1.0}


async def test_output_class_is_the_old_name_of_is_classifier_which_wins(tmp_path: Path) -> None:
    booster = xgboost_booster("binary:logistic")
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.ubj")
    scores = booster.predict(xgboost.DMatrix(ROWS))
    old = await answers(spec_for(folder, config_of("dims: [ 1 ]", {"output_class": "false"})))
    np.testing.assert_allclose(old, scores, rtol=1e-5)
    both = {"output_class": "false", "is_classifier": "true"}
    assert set(await answers(spec_for(folder, config_of("dims: [ 1 ]", both)))) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("filename", "parameters", "extra"),
    [
        ("xgboost.model", {}, ""),
        ("xgboost.model", {"model_type": "xgboost"}, ""),
        ("xgboost.ubj", {}, ""),
        ("xgboost.json", {}, ""),
        ("trees.json", {}, 'default_model_filename: "trees.json"'),
        ("trees", {"model_type": "xgboost_ubj"}, 'default_model_filename: "trees"'),
    ],
)
async def test_a_file_is_found_by_its_type_its_name_or_what_is_there(
    filename: str, parameters: dict[str, str], extra: str, tmp_path: Path
) -> None:
    booster = xgboost_booster("reg:squarederror")

    def save(path: Path) -> None:
        path.write_bytes(booster.save_raw("json" if path.suffix == ".json" else "ubj"))

    folder = folder_of(tmp_path / "m", save, filename)
    found = await answers(spec_for(folder, config_of("dims: [ 1 ]", parameters, extra=extra)))
    np.testing.assert_allclose(found, booster.predict(xgboost.DMatrix(ROWS)), rtol=1e-5)


async def test_an_unknown_field_is_refused_unless_it_may_be_there(tmp_path: Path) -> None:
    def save(path: Path) -> None:
        text = xgboost_booster("reg:squarederror").save_raw("json").decode()
        path.write_text(text[:-1] + ',"of_tomorrow":1}')

    folder = folder_of(tmp_path / "m", save, "xgboost.json")
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", {})))
    assert isinstance(error, Internal)
    assert "'xgboost.json' cannot be read as xgboost_json" in error.message
    allowed = {"xgboost_allow_unknown_field": "true"}
    assert len(await answers(spec_for(folder, config_of("dims: [ 1 ]", allowed)))) == len(ROWS)


@pytest.mark.parametrize("count", ["1", "2", "-1"])
async def test_any_number_of_threads_gives_the_same(count: str, tmp_path: Path) -> None:
    booster = xgboost_booster("reg:squarederror")
    rows = np.tile(ROWS, (200, 1))  # enough for more than one thread
    config = config_of("dims: [ 1 ]", {"cpu_nthread": count}).replace("max_batch_size: 64", "max_batch_size: 8000")
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.ubj")
    found = await answers(spec_for(folder, config), rows)
    np.testing.assert_allclose(found, booster.predict(xgboost.DMatrix(rows)), rtol=1e-5)


async def test_hints_for_other_code_are_taken_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    booster = xgboost_booster("reg:squarederror")
    folder = folder_of(tmp_path / "m", booster.save_model, "xgboost.ubj")
    hints = {
        "storage_type": "SPARSE8",
        "algo": "ALGO_AUTO",
        "threads_per_tree": "2",
        "blocks_per_sm": "0",
        "transfer_threshold": "10",
        "layout": "layered",
        "chunk_size": "16",
        "use_experimental_optimizations": "true",
    }
    plain = await answers(spec_for(folder, config_of("dims: [ 1 ]", {})))
    caplog.set_level(logging.INFO)
    hinted = await answers(spec_for(folder, config_of("dims: [ 1 ]", hints)))
    assert hinted.tolist() == plain.tolist()
    for key in hints:
        assert f"parameter '{key}': a hint that has no effect here" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "kind", "says"),
    [
        ({"model_type": "catboost"}, Unsupported, "catboost not recognized as a valid serialization format"),
        ({"threshold": "half"}, InvalidArgument, "Bad input for parameter threshold; expected a number, got 'half'"),
        ({"predict_proba": "yes"}, InvalidArgument, "parameter 'predict_proba': failed to convert 'yes' to boolean"),
        ({"output_class": "2"}, InvalidArgument, "parameter 'output_class': failed to convert '2' to boolean"),
        ({"cpu_nthread": "all"}, InvalidArgument, "parameter 'cpu_nthread': failed to convert 'all'"),
        ({"layout": "flat"}, InvalidArgument, "parameter 'layout': expected one of depth_first, "),
        ({"chunk_size": "3"}, InvalidArgument, "parameter 'chunk_size': expected a power of 2 from 1 to 32, got '3'"),
        ({"transfer_threshold": "x"}, InvalidArgument, "parameter 'transfer_threshold': failed to convert 'x'"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(
    parameters: dict[str, str], kind: type[ServerError], says: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "m", xgboost_booster("reg:squarederror").save_model, "xgboost.ubj")
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", parameters)))
    assert isinstance(error, kind)
    assert says in error.message


async def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", xgboost_booster("reg:squarederror").save_model, "xgboost.ubj")
    shap = f'output [ {{ name: "treeshap_output" data_type: TYPE_FP32 dims: [ {FEATURES + 1} ] }} ]'
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", {}, extra=shap)))
    assert "output 'treeshap_output': SHAP values are not computed here" in error.message
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", {}), kind=InstanceKind.GPU))
    assert "KIND_GPU cannot be used in CPU-only build" in error.message

    folder = folder_of(tmp_path / "zeros", lightgbm_booster("binary", zero_as_missing=True).save_model, "model.txt")
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", {})))
    assert isinstance(error, Unsupported)
    assert "'model.txt' was trained with zero_as_missing" in error.message

    rows, _ = training_rows()
    targets = xgboost.train({"nthread": 1}, xgboost.DMatrix(rows, rows[:, :2]), 2)
    folder = folder_of(tmp_path / "targets", targets.save_model, "xgboost.ubj")
    error = await refusal(spec_for(folder, config_of("dims: [ 2 ]", {})))
    assert "Multi-target model not supported; it has 2 targets" in error.message


@pytest.mark.parametrize("dump", [joblib.dump, lambda model, path: path.write_bytes(pickle.dumps(model))])
async def test_a_pickle_is_read_where_the_operator_allows_it(dump: Callable[..., object], tmp_path: Path) -> None:
    trained = sklearn_ensemble.RandomForestClassifier(n_estimators=9, max_depth=4, random_state=0).fit(*training_rows())
    folder = folder_of(tmp_path / "m", lambda path: dump(trained, path), "model.pkl")
    config = config_of(f"dims: [ {CLASSES} ]", PROBABILITIES)
    rows = np.nan_to_num(ROWS)
    found = await answers(spec_for(folder, config, allow_pickle="true"), rows)
    np.testing.assert_allclose(found, trained.predict_proba(rows), rtol=1e-5)


class Trap:
    """Whose pickle leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


async def test_a_pickle_is_not_touched_otherwise_and_the_refusal_says_why(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = folder_of(tmp_path / "m", lambda path: joblib.dump(Trap(mark), path), "model.pkl")
    for parameters in ({}, {"allow-pickle": "true"}, {"model_type": "sklearn_pickle"}):
        error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", parameters)))
        assert isinstance(error, InvalidArgument)
        assert "whoever wrote a pickle can run any code in the server" in error.message
        assert "--backend-config=fil,allow-pickle=true" in error.message
    assert not mark.exists()
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", {}), allow_pickle="true"))
    assert "'model.pkl' cannot be read as sklearn_pickle" in error.message
    assert mark.exists()


async def test_a_pickle_of_a_package_that_is_not_here_says_so(tmp_path: Path) -> None:
    text = b"cthere_is_no_such_package\nModel\n."
    folder = folder_of(tmp_path / "m", lambda path: path.write_bytes(text), "model.pkl")
    error = await refusal(spec_for(folder, config_of("dims: [ 1 ]", {}), allow_pickle="true"))
    assert isinstance(error, Unavailable)
    assert "needs the Python package 'there_is_no_such_package'" in error.message


async def test_instances_share_one_forest(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", xgboost_booster("reg:squarederror").save_model, "xgboost.ubj")
    spec = spec_for(folder, config_of("dims: [ 1 ]", {}))
    async with loaded(FilBackend, spec) as first:
        (folder / "1" / "xgboost.ubj").unlink()
        async with loaded(FilBackend, spec) as second:
            (one,) = await infer(first, request_of(("input__0", ROWS)))
            (other,) = await infer(second, request_of(("input__0", ROWS)))
    assert answer(one)["output__0"].tolist() == answer(other)["output__0"].tolist()


@pytest.mark.parametrize(
    ("objective", "parameters", "dims"),
    [
        ("reg:squarederror", "", ["1"]),
        ("binary:logistic", "", ["1"]),
        ("multi:softprob", "", ["1"]),
        ("binary:logistic", 'parameters { key: "predict_proba" value { string_value: "true" } }', ["2"]),
        ("multi:softprob", 'parameters { key: "is_classifier" value { string_value: "false" } }', [str(CLASSES)]),
    ],
)
async def test_what_is_left_out_is_completed(objective: str, parameters: str, dims: list[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", xgboost_booster(objective).save_model, "xgboost.ubj")
    (folder / "config.pbtxt").write_text(f'backend: "fil" {parameters}')
    async with serving(tmp_path) as core:
        config = model_of(core).config
        assert [str(dim) for dim in config["output"][0]["dims"]] == dims
        found = await model_of(core).infer({"input__0": ROWS[:3]})
    assert found["output__0"].shape == ((3,) if dims == ["1"] else (3, int(dims[0])))


async def test_the_operators_word_reaches_the_backend(tmp_path: Path) -> None:
    """By `--backend-config=fil,allow-pickle=true`."""
    trained = sklearn_ensemble.RandomForestClassifier(n_estimators=3, random_state=0).fit(*training_rows())
    folder = folder_of(tmp_path / "m", lambda path: joblib.dump(trained, path), "model.pkl")
    (folder / "config.pbtxt").write_text('backend: "fil"')
    async with serving(tmp_path, load=()) as core:
        with pytest.raises(InvalidArgument, match="allow-pickle=true"):
            await core.load_model("m")
    async with serving(tmp_path, backend_config={"fil": {"allow-pickle": "true"}}) as core:
        found = await model_of(core).infer({"input__0": np.nan_to_num(ROWS[:4])})
    assert found["output__0"].tolist() == trained.predict(np.nan_to_num(ROWS[:4])).tolist()
