"""The flag readers: every form of a flag, every way to get one wrong, and the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioton.flags.fields import (
    UsageError,
    at_least,
    boolean,
    choice,
    filesystem_path,
    flag,
    integer,
    read_arguments,
    read_environment,
    read_words,
    repeatable,
    rows,
    switch,
)


@dataclass(frozen=True)
class Example:
    some_port: int = flag(1, integer(0, 9), group="A", metavar="<integer>", help="A port.")
    allow_it: bool = flag(True, boolean, group="A", metavar="<boolean>", help="Allow it.", aliases=("permit-it",))
    path: tuple[Path, ...] = repeatable(filesystem_path, group="B", metavar="<path>", help="Paths.", aliases=("dir",))
    be_brief: bool = switch(group="B", help="Be brief.")
    colour: str = flag("Red", choice("Red", "Light_Blue"), group="B", metavar="<colour>", help="A colour.")
    some_port_range: int = flag(1, integer(0, 9), group="B", metavar="<integer>", help="Another.")
    least: int = flag(2, at_least(2), group="B", metavar="<integer>", help="A number.")


TABLE = rows(Example)


def test_the_table_has_a_row_per_field_in_order() -> None:
    """Name, group, default and kind come from the field."""
    assert [(row.name, row.group, row.default, row.is_repeatable, row.is_switch) for row in TABLE] == [
        ("some-port", "A", 1, False, False),
        ("allow-it", "A", True, False, False),
        ("path", "B", (), True, False),
        ("be-brief", "B", False, False, True),
        ("colour", "B", "Red", False, False),
        ("some-port-range", "B", 1, False, False),
        ("least", "B", 2, False, False),
    ]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--"], {}),
        (["--some-port=3"], {"some_port": 3}),
        (["--some-port", "3"], {"some_port": 3}),
        (["--some-port=3", "--some-port=4"], {"some_port": 4}),
        (["--permit-it", "OFF"], {"allow_it": False}),
        (["--path=/a=b"], {"path": (Path("/a=b"),)}),
        (["--path=/a", "--dir", "/b"], {"path": (Path("/a"), Path("/b"))}),
        (["--be-brief", "--some-port=1"], {"be_brief": True, "some_port": 1}),
        (["--be-brief=true"], {"be_brief": True}),
        (["--be-brief", "--be-brief=OFF"], {"be_brief": False}),
        (["--allow-it"], {"allow_it": True}),
        (["--allow-it=false", "--allow-it", "--some-port=1"], {"allow_it": True, "some_port": 1}),
        (["--allow-it", "0"], {"allow_it": False}),
        (["--allow-it=False", "--allow-it=True"], {"allow_it": True}),
        (["--some", "3", "--al=0", "--di=/a"], {"some_port": 3, "allow_it": False, "path": (Path("/a"),)}),
        (["--colour=LIGHT_blue"], {"colour": "Light_Blue"}),
        (["--colour", "red"], {"colour": "Red"}),
        (["--least=-5"], {"least": 2}),
        (["--least", "-5", "--least", " 7 "], {"least": 7}),
    ],
)
def test_arguments_are_read(arguments: list[str], values: dict[str, object]) -> None:
    """Both forms of giving a value, aliases, repetition, switches, names cut short, and choices in any letter case."""
    assert read_arguments(TABLE, arguments) == values


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["stray"], "Unexpected argument: stray"),
        (["--some-prt=1"], 'Bad option: "--some-prt". Did you mean --some-port?'),
        (["--zzz"], 'Bad option: "--zzz".'),
        (["--some-port"], "--some-port needs a value: --some-port=<integer>"),
        (["--some-port", "--be-brief"], "--some-port needs a value: --some-port=<integer>"),
        (["--some-port=x"], "--some-port: expected a whole number, got 'x'"),
        (["--some-port=10"], "--some-port: expected a whole number from 0 to 9, got '10'"),
        (["-some-port=1"], "Unexpected argument: -some-port=1; flags begin with two dashes: --some-port=1"),
        (["-v"], "Unexpected argument: -v"),
        (["--", "--some-port=1"], "Unexpected argument: --some-port=1"),
        (["--allow-it", "maybe"], "Unexpected argument: maybe"),
        (["--be-brief=perhaps"], "--be-brief: expected true or false (or on, off, 1, 0), got 'perhaps'"),
        (["--path="], "--path: expected a path, got ''"),
        (["--=1"], 'Bad option: "--".'),
        (["--p=/a"], 'Bad option: "--p". It may be short for --path or --permit-it'),
        (["--permit-it=yes"], "--permit-it: expected true or false (or on, off, 1, 0), got 'yes'"),
    ],
)
def test_wrong_arguments_say_what_to_mend(arguments: list[str], text: str) -> None:
    """Every mistake names the flag, what was expected and what was there."""
    with pytest.raises(UsageError) as raised:
        read_arguments(TABLE, arguments)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("arguments", "places", "values"),
    [
        (["a", "--some-port", "3", "b"], ["a", "b"], {"some_port": 3}),
        (["--allow-it", "a"], ["a"], {"allow_it": True}),
        (["--allow-it", "on", "a"], ["a"], {"allow_it": True}),
        (["--be-brief", "true"], ["true"], {"be_brief": True}),
        (["--be-brief", "--", "--some-port", "-"], ["--some-port", "-"], {"be_brief": True}),
        (["-"], ["-"], {}),
    ],
)
def test_words_beside_flags(arguments: list[str], places: list[str], values: dict[str, object]) -> None:
    """In any order; a Boolean flag takes only a Boolean with it."""
    assert read_words(TABLE, arguments) == (places, values)


def test_the_environment_is_read() -> None:
    """One variable per flag; several values of a repeatable one are parted by semicolons; strangers are ignored."""
    environment = {
        "TRIOTON_SOME_PORT": "5",
        "TRIOTON_PATH": "/a; /b;",
        "TRIOTON_BE_BRIEF": "on",
        "TRIOTON_SERVICE_HOST": "10.0.0.1",
        "SOME_PORT": "6",
    }
    assert read_environment(TABLE, environment) == {
        "some_port": 5,
        "path": (Path("/a"), Path("/b")),
        "be_brief": True,
    }


def test_a_wrong_variable_is_named() -> None:
    """Container platforms set such variables by themselves; the text must lead there."""
    with pytest.raises(UsageError, match=r"^TRIOTON_SOME_PORT: expected a whole number, got 'tcp://10\.0\.0\.1:80'$"):
        read_environment(TABLE, {"TRIOTON_SOME_PORT": "tcp://10.0.0.1:80"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("On", True), ("1", True), ("false", False), ("oFF", False), ("0", False)],
)
def test_booleans_in_any_letter_case(text: str, value: bool) -> None:
    assert boolean(text) is value


def test_a_lower_bound_alone() -> None:
    """Without a maximum the text does not speak of one."""
    assert integer(1)("70000") == 70000
    with pytest.raises(ValueError, match=r"^expected a whole number of at least 1$"):
        integer(1)("0")


def test_choices_are_listed() -> None:
    with pytest.raises(ValueError, match=r"^expected red or green$"):
        choice("red", "green")("blue")


@given(st.lists(st.text()))
def test_no_arguments_break_the_reader(arguments: list[str]) -> None:
    """Whatever is typed is read or refused, and refused only as a usage error."""
    try:
        values = read_arguments(TABLE, arguments)
    except UsageError:
        return
    assert set(values) <= {row.field_name for row in TABLE}
