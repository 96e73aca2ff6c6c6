"""Stop strings: ends a stream of text at the first of some strings, wherever the text was cut. Pure.

An Aho-Corasick automaton reads every character once. What may be the begin of a stop string is held back, so at most
one character less than the longest of them. The match that ends first counts, as in vLLM, where text is checked token
by token; of several that end there, the longest, so that nothing of any of them is shown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from protocol.errors import InvalidArgument

# Characters of all stop strings of a request together. They are read on the server's loop.
MAX_STOP_CHARACTERS = 4096


class _State:
    """A node of the automaton: the longest begin of a stop string with which the text read so far ends."""

    __slots__ = ("depth", "fallback", "match", "moves")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.moves: dict[str, _State] = {}
        self.fallback: _State | None = None  # the longest proper ending that is a begin, too; None for the root
        self.match: str | None = None  # the longest stop string that ends here


class StopStrings:
    """Passes text on until a stop string ends it.

    Attributes:
        matched: the stop string that has ended the text. From then on, `push` and `finish` give "".
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include` shows the stop string, too. Raises InvalidArgument where one is empty or all are too long."""
        _check(stops)
        self.matched: str | None = None
        self._include = include
        self._state = self._root = _automaton(stops)
        self._held = ""
        # Finds the next character that may begin a stop string.
        self._first = re.compile(f"[{re.escape(''.join(self._root.moves))}]") if self._root.moves else None

    def push(self, text: str) -> str:
        """The text that may be shown now."""
        if self._first is None:
            return text
        if self.matched is not None:
            return ""
        if not self._held and self._first.search(text) is None:
            return text
        known = self._held + text
        place = len(self._held)
        while place < len(known):
            if self._state is self._root:
                found = self._first.search(known, place)
                if found is None:
                    break
                place = found.start()
            self._state = self._next(known[place])
            place += 1
            if self._state.match is not None:
                return self._end(known[:place], self._state.match)
        shown = len(known) - self._state.depth
        self._held = known[shown:]
        return known[:shown]

    def finish(self) -> str:
        """What was held back, as the text ends here."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _next(self, character: str) -> _State:
        state: _State | None = self._state
        while state is not None:
            following = state.moves.get(character)
            if following is not None:
                return following
            state = state.fallback
        return self._root

    def _end(self, text: str, match: str) -> str:
        self.matched = match
        self._held = ""
        return text if self._include else text[: len(text) - len(match)]


def _check(stops: Sequence[str]) -> None:
    if not all(stops):
        raise InvalidArgument("stop: expected strings of at least one character, got an empty one")
    if (size := sum(map(len, stops))) > MAX_STOP_CHARACTERS:
        raise InvalidArgument(
            f"stop: expected at most {MAX_STOP_CHARACTERS} characters in all stop strings together, got {size}"
        )


def _automaton(stops: Sequence[str]) -> _State:
    root = _State(0)
    for stop in stops:
        state = root
        for depth, character in enumerate(stop, 1):
            state = state.moves.setdefault(character, _State(depth))
        state.match = stop
    _link(root)
    return root


def _link(root: _State) -> None:
    """Sets each state's fallback, breadth first, and with it the matches that end inside of longer begins."""
    line = deque([root])
    while line:
        state = line.popleft()
        for character, following in state.moves.items():
            above = state.fallback
            while above is not None and character not in above.moves:
                above = above.fallback
            following.fallback = root if above is None else above.moves[character]
            if following.match is None:
                following.match = following.fallback.match
            line.append(following)
