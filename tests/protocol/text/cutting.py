"""Texts cut into pieces, and the deltas of such pieces joined again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from protocol.text.deltas import Delta, ToolCallStart
from protocol.text.output_parser import OutputParser

CUTS = st.lists(st.integers(0, 1000), max_size=8)


def cut(text: str, cuts: list[int]) -> list[str]:
    """The text in pieces, cut at these places, which are taken modulo its length."""
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[begin:end] for begin, end in pairwise(places)]


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if type(last) is not type(delta) or isinstance(last, ToolCallStart) or isinstance(delta, ToolCallStart):
            found.append(delta)
        else:
            assert last is not None
            found[-1] = replace(last, text=last.text + delta.text)
    return found


def parsed(parser: OutputParser, pieces: Iterable[str]) -> list[Delta]:
    """All deltas of an answer that comes in these pieces, joined."""
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    assert all(isinstance(delta, ToolCallStart) or delta.text for delta in deltas)
    return joined(deltas + parser.finish())
