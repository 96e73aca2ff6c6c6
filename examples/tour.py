"""Asks a server all that the examples can ask, over HTTP and over gRPC, and checks every answer.

    python examples/build_repository.py /tmp/models
    trioton serve --model-repository /tmp/models
    python examples/tour.py --http 127.0.0.1:8000 --grpc 127.0.0.1:8001

Ends with 0 only if all answers are right and both protocols agree.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(Path(__file__).resolve().parent / "clients"))  # as where they run as scripts of their own

import add_sub
import file_type
import ocr
import ocr_page
import voice_activity
from connection import DEFAULT_URLS, Connection, Server, show_any_character

SECONDS_OFF = 0.25  # how far a found phrase may start or end from where it was put
LINE_LIKENESS = 0.95  # how much of a line must be read as it was drawn; case and spaces do not count
EXPECTED_LABELS = {
    ".py": "python",
    ".toml": "toml",
    ".md": "markdown",
    ".proto": "proto",
    ".pbtxt": "textproto",
    "Makefile": "makefile",
}


@dataclasses.dataclass(frozen=True)
class Stop:
    """One thing to show: what to ask, how to say the answer, and what is wrong with it (nothing, it is hoped)."""

    title: str
    ask: Callable[[Server], Any]
    describe: Callable[[Any], Sequence[str]]
    problems: Callable[[Any], Sequence[str]]


def ask_file_types(server: Server) -> list[file_type.FileType]:
    return file_type.file_types(server, file_type.files_around(file_type.default_folder()))


def problems_of_page(lines: Sequence[ocr.Line]) -> list[str]:
    drawn = [text for text, _ in ocr.PAGE_LINES]
    if len(lines) != len(drawn):
        return [f"{len(drawn)} lines were drawn, {len(lines)} were read"]
    problems = []
    for text, line in zip(drawn, lines, strict=True):
        if likeness(text, line.text) < LINE_LIKENESS:
            problems.append(f"drawn '{text}', read '{line.text}'")
        if line.was_upside_down != (text == ocr.UPSIDE_DOWN):
            problems.append(f"'{text}' was taken for {'upside down' if line.was_upside_down else 'upright'}")
    return problems


def likeness(drawn: str, read: str) -> float:
    """0 to 1, without regard to case and spaces."""
    drawn, read = ("".join(text.casefold().split()) for text in (drawn, read))
    return SequenceMatcher(None, drawn, read, autojunk=False).ratio()


def problems_of_speech(speech: voice_activity.Speech) -> list[str]:
    expected, found = speech.recording.phrases, speech.segments
    if len(found) != len(expected):
        return [f"{len(expected)} voices were put in, {len(found)} were found"]
    return [
        f"a voice from {put[0]:.2f} to {put[1]:.2f} s was found from {got[0]:.2f} to {got[1]:.2f} s"
        for put, got in zip(expected, found, strict=True)
        if max(abs(put[0] - got[0]), abs(put[1] - got[1])) > SECONDS_OFF
    ]


def expected_label(path: Path) -> str | None:
    """What a file is by its name; None where the name says nothing that can be judged."""
    return EXPECTED_LABELS.get(path.suffix or path.name)


def is_judged(answer: file_type.FileType) -> bool:
    """A doubtful answer ("perhaps …") may be wrong, but not for Python files."""
    expected = expected_label(answer.path)
    return expected is not None and (answer.is_sure or expected == "python")


def problems_of_file_types(types: Sequence[file_type.FileType]) -> list[str]:
    judged = [answer for answer in types if is_judged(answer)]
    problems = [
        f"{answer.path} was taken for {answer.label or 'nothing'}"
        for answer in judged
        if answer.label != expected_label(answer.path)
    ]
    if not any(answer.label == "python" for answer in types):
        problems.append("no Python file was found")
    return problems


def describe_file_types(types: Sequence[file_type.FileType]) -> list[str]:
    """Says which rows the verdict behind them is not about."""
    rows = file_type.describe(types, file_type.default_folder())
    width = max(map(len, rows), default=0)
    return [
        row if is_judged(answer) else f"{row:{width}}  (not judged)" for answer, row in zip(types, rows, strict=True)
    ]


def problems_of_sums(sums: add_sub.Sums) -> list[str]:
    right = np.array_equal(sums.added, sums.left + sums.right) and np.array_equal(
        sums.subtracted, sums.left - sums.right
    )
    return [] if right else ["the sums are wrong"]


STOPS = (
    Stop(
        "Reading a page (ocr_detection, ocr_direction, ocr_recognition, ocr_text)",
        lambda server: ocr.read_page(server, ocr.draw_page()),
        ocr.describe,
        problems_of_page,
    ),
    Stop(
        "The same page in one request (ocr_page, an ensemble)",
        lambda server: ocr_page.read_page(server, ocr.draw_page()),
        ocr.describe,
        problems_of_page,
    ),
    Stop(
        "Listening for voices (voice_activity)",
        lambda server: voice_activity.listen(server, voice_activity.example_recording()),
        voice_activity.describe,
        problems_of_speech,
    ),
    Stop(
        "Telling files apart by their content (file_type)",
        ask_file_types,
        describe_file_types,
        problems_of_file_types,
    ),
    Stop("Arithmetic in a Python model (add_sub)", add_sub.add_and_subtract, add_sub.describe, problems_of_sums),
)


def agree(one: Any, other: Any) -> bool:
    """Whether two answers are the same, floats up to rounding."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(agree(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(agree, one, other))
    if isinstance(one, float | np.ndarray):
        return np.shape(one) == np.shape(other) and np.allclose(one, other, atol=1e-3)
    return one == other


def visit(server: Server, stop: Stop, earlier: Any) -> tuple[Any, list[str]]:
    """Make one stop and print it; answers what came back and what is wrong with it.

    `earlier` is what the same stop brought over the other protocol, or None: the same answer is not printed twice.
    """
    started = time.perf_counter()
    try:
        answer = stop.ask(server)
    except (InferenceServerException, OSError) as error:
        print(f"  {stop.title}\n    ✗ {error}\n")
        return None, [f"{stop.title}: {error}"]
    seconds = time.perf_counter() - started
    problems = list(stop.problems(answer))
    if earlier is not None and agree(answer, earlier):
        lines = ["the same answer"]
    else:
        lines = list(stop.describe(answer))
        if earlier is not None:
            problems.append("the two protocols brought different answers")
    verdicts = [f"✗ {problem}" for problem in problems] or [f"✓ right, in {seconds:.2f} s"]
    print(f"  {stop.title}", *(f"    {line}" for line in [*lines, *verdicts]), "", sep="\n")
    return answer, [f"{stop.title}: {problem}" for problem in problems]


def tour(urls: dict[str, str]) -> list[str]:
    """Make all stops over each protocol; answers all that went wrong, each with its protocol."""
    problems = []
    answers: dict[str, Any] = {}
    for protocol, url in urls.items():
        print(f"Over {protocol_in_words(protocol)}, from {url}\n")
        try:
            with Connection(protocol, url) as server:
                if not server.is_ready():
                    raise InferenceServerException("the server is not ready")
                for stop in STOPS:
                    answer, wrong = visit(server, stop, answers.get(stop.title))
                    answers.setdefault(stop.title, answer)
                    problems += [f"{protocol_in_words(protocol)}: {problem}" for problem in wrong]
        except (InferenceServerException, OSError) as error:
            problems.append(f"{protocol_in_words(protocol)}: no server to ask at {url}: {error}")
    return problems


def chat_problems(url: str) -> list[str]:
    """Let the language model speak by OpenAI's own client; answers what is wrong. Without client or model, says so."""
    title = "A language model, by OpenAI's client (tiny_llama, of random weights)"
    try:
        import chat
    except ImportError:
        print(f"  {title}\n    left out: pip install openai\n")
        return []
    try:
        if chat.MODEL not in chat.models(url):
            print(f"  {title}\n    left out: the server has no {chat.MODEL}\n")
            return []
        print(f"  {title}\n    {chat.PROMPT}\n    ", end="", flush=True)
        started = time.perf_counter()
        answer = chat.chat(url, lambda piece: chat.show(piece.replace("\n", " ")))
    except chat.openai.OpenAIError as error:
        print(f"\n    ✗ {error}\n")
        return [f"{title}: {error}"]
    problems = problems_of_chat(answer)
    verdicts = [f"✗ {problem}" for problem in problems] or [
        f"✓ right, in {len(answer.pieces)} pieces and again as a whole, in {time.perf_counter() - started:.2f} s"
    ]
    print("", *(f"    {line}" for line in verdicts), "", sep="\n")
    return [f"{title}: {problem}" for problem in problems]


def problems_of_chat(answer: Any) -> list[str]:
    if len(answer.pieces) < 2:
        return [f"the stream had {len(answer.pieces)} pieces"]
    if "".join(answer.pieces) != answer.whole:
        return ["the stream and the whole answer differ"]
    return []


def protocol_in_words(protocol: str) -> str:
    return {"http": "HTTP", "grpc": "gRPC"}[protocol]


def main(arguments: Sequence[str] | None = None) -> int:
    show_any_character()
    parser = argparse.ArgumentParser(description="Ask a server all that the examples can ask, and check the answers.")
    for protocol, url in DEFAULT_URLS.items():
        words = protocol_in_words(protocol)
        parser.add_argument(f"--{protocol}", default=url, metavar="HOST:PORT", help=f"{words} address; default: {url}")
    urls = vars(parser.parse_args(arguments))
    problems = tour(urls)
    if not problems:
        problems = chat_problems(urls["http"])
    if problems:
        print("Not all was right:", *(f"  {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 1
    print("All answers were right, and HTTP and gRPC agree.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
