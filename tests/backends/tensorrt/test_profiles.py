"""Which profiles an instance uses, and which of them a batch gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.tensorrt.profiles import choose_profile, group_profiles, is_within, profile_indices
from protocol.errors import InvalidArgument
from repository.pbtxt import parse_pbtxt
from tests.backends.tensorrt.engine_models import engine, engine_tensor, rows_engine

SMALL, LARGE = (1, 2, 4), (4, 8, 16)


@pytest.mark.parametrize(("names", "indices"), [((), (0,)), (("1",), (1,)), (("1", "0"), (1, 0)), (("0", "0"), (0,))])
def test_profiles_are_named_by_their_numbers(names: tuple[str, ...], indices: tuple[int, ...]) -> None:
    assert profile_indices(names, rows_engine(SMALL, LARGE), model="m") == indices


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "profile name must not be empty"),
        ("big", "unable to parse 'big': "),
        ("-1", "unable to parse '-1': "),
        (
            "2",
            "unable to autofill for 'm', configuration specified invalid profile 2 . Number of profiles supported by "
            "TensorRT engine: 2",
        ),
    ],
)
def test_a_profile_that_is_none_is_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        profile_indices([name], rows_engine(SMALL, LARGE), model="m")
    assert caught.value.message.startswith(says)
    assert "'m'" in caught.value.message


def test_each_group_has_its_own() -> None:
    text = 'name: "m" instance_group [ { profile: "1" }, { }, { profile: [ "1", "2" ] } ]'
    found = group_profiles(parse_pbtxt(text, source="test"), rows_engine(SMALL, LARGE, LARGE))
    assert found == [(1,), (0,), (1, 2)]


@pytest.mark.parametrize(("rows", "profile"), [(1, 0), (3, 0), (4, 0), (5, 1), (16, 1)])
def test_the_profile_whose_optimum_is_nearest_is_chosen(rows: int, profile: int) -> None:
    description = rows_engine(SMALL, LARGE)
    assert choose_profile(description, (0, 1), {"X": (rows, 4)}, model="m", instance="m_0_0") == profile
    assert choose_profile(description, (1, 0), {"X": (rows, 4)}, model="m", instance="m_0_0") == profile


def test_of_equals_the_first_is_chosen() -> None:
    description = rows_engine((1, 4, 8), (1, 4, 8))
    assert choose_profile(description, (1, 0), {"X": (3, 4)}, model="m", instance="m_0_0") == 1


def test_all_inputs_count_for_the_distance() -> None:
    description = engine(
        engine_tensor("A", (-1,), ((1,), (1,), (9,)), ((1,), (5,), (9,))),
        engine_tensor("B", (-1,), ((1,), (9,), (9,)), ((1,), (1,), (9,))),
        profiles=2,
    )
    choose = {(1, 9): 0, (5, 1): 1, (4, 8): 0, (4, 2): 1}
    for (a, b), profile in choose.items():
        assert choose_profile(description, (0, 1), {"A": (a,), "B": (b,)}, model="m", instance="i") == profile


def test_outside_of_the_only_profile_says_where() -> None:
    with pytest.raises(InvalidArgument) as caught:
        choose_profile(rows_engine(SMALL), (0,), {"X": (5, 4)}, model="m", instance="m_0_0")
    assert caught.value.message == (
        "request specifies invalid shape for input 'X' for m_0_0. Error details: model expected the shape of "
        "dimension 0 to be between 1 and 4 but received 5 (model 'm')"
    )


def test_another_rank_than_the_profiles_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"input 'X' .* expected 2 dimensions but received 1"):
        choose_profile(rows_engine(SMALL), (0,), {"X": (4,)}, model="m", instance="m_0_0")


def test_values_of_a_shape_tensor_are_bounded_too() -> None:
    values = engine_tensor("SHAPE", (2,), ((1, 1), (2, 2), (4, 8)), shape_tensor=True)
    assert choose_profile(engine(values), (0,), {"SHAPE": (4, 8)}, model="m", instance="i") == 0
    with pytest.raises(InvalidArgument, match=r"'SHAPE' .* expected the value 1 to be between 1 and 8 but received 9"):
        choose_profile(engine(values), (0,), {"SHAPE": (1, 9)}, model="m", instance="i")


def test_outside_of_all_profiles_names_them() -> None:
    with pytest.raises(InvalidArgument) as caught:
        choose_profile(rows_engine(SMALL, LARGE), (0, 1), {"X": (17, 4)}, model="m", instance="m_0_0")
    assert caught.value.message.startswith(
        "failed to find any Optimization Profile among [ 0[0] 1[1]] to support the requested dimensions "
        "(or shape values)"
    )
    assert "received 17" in caught.value.message


BOUND = st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20)).map(lambda b: tuple(sorted(b)))


@given(st.lists(BOUND, min_size=1, max_size=4), st.integers(1, 25))
def test_what_is_chosen_allows_the_shape_and_none_is_nearer(bounds: list[tuple[int, int, int]], rows: int) -> None:
    description = rows_engine(*bounds)
    profiles = tuple(range(len(bounds)))
    extents = {"X": (rows, 4)}
    allowed = [index for index, (least, _, most) in enumerate(bounds) if least <= rows <= most]
    assert [index for index in profiles if is_within(description, index, extents)] == allowed
    if not allowed:
        with pytest.raises(InvalidArgument):
            choose_profile(description, profiles, extents, model="m", instance="i")
        return
    found = choose_profile(description, profiles, extents, model="m", instance="i")
    assert found in allowed
    assert abs(bounds[found][1] - rows) == min(abs(bounds[index][1] - rows) for index in allowed)
