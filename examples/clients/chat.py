"""Chats with a language model by OpenAI's own client, whose words are printed as they come.

    pip install openai
    python examples/clients/chat.py "What is a model repository?"

`tiny_llama`, the model of the examples, has random weights: it shows how text streams, and its words mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import openai

MODEL = "tiny_llama"
PROMPT = "What is a model repository?"
URL = "127.0.0.1:8000"
MAX_TOKENS = 40


@dataclass(frozen=True)
class Answer:
    """What a model has said: the pieces of a stream, and the same answer as a whole."""

    pieces: list[str]
    whole: str


def client(url: str) -> openai.OpenAI:
    """`url` is host:port of the server."""
    return openai.OpenAI(base_url=f"http://{url}/v1", api_key="none", max_retries=0)


def models(url: str) -> list[str]:
    """The language models that the server has."""
    with client(url) as api:
        return [model.id for model in api.models.list()]


def chat(url: str, told: Callable[[str], None], prompt: str = PROMPT, model: str = MODEL) -> Answer:
    """Ask twice: `told` gets each piece of the first answer, a stream, when it is there."""
    with client(url) as api:
        completions = api.chat.completions
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": prompt}]
        pieces = []
        with completions.create(
            model=model, messages=messages, max_tokens=MAX_TOKENS, temperature=0, stream=True
        ) as chunks:
            for chunk in chunks:
                piece = chunk.choices[0].delta.content or ""
                if piece:
                    told(piece)
                    pieces.append(piece)
        whole = completions.create(model=model, messages=messages, max_tokens=MAX_TOKENS, temperature=0)
        return Answer(pieces, whole.choices[0].message.content or "")


def show(piece: str) -> None:
    print(piece, end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Chat with a language model.")
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("-m", "--model", default=MODEL, help=f"default: {MODEL}")
    parser.add_argument("-u", "--url", default=URL, help=f"host:port of the server; default: {URL}")
    given = parser.parse_args()
    try:
        chat(given.url, show, given.prompt, given.model)
    except openai.OpenAIError as error:
        print(f"server at {given.url}: {error}", file=sys.stderr)
        return 1
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
