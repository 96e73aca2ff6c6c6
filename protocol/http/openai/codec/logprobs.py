"""Log probabilities: from the model's JSON, one object by token id for each token, to those of chat and completions.

The token that was taken stands first in its object, whatever its rank, as vLLM writes it. With `by_ids` a token is
called `token_id:<id>`, as by vLLM: several tokens may have one text. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Entries = Sequence[Mapping[str, Mapping[str, Any]]]
# The bytes of a token by its id; None where there is no tokenizer to ask.
TokenBytes = Callable[[int], bytes] | None


def chat_logprobs(
    entries: Entries, top: int, token_bytes: TokenBytes = None, *, by_ids: bool = False
) -> dict[str, Any]:
    """The member `logprobs` of a chat's choice or chunk, with the `top` likeliest alternatives of each token."""
    content = []
    for entry in entries:
        taken = next(iter(entry.items()), None)
        if taken is not None:
            best = [_token(*found, token_bytes, by_ids) for found in _likeliest(entry, top)]
            content.append({**_token(*taken, token_bytes, by_ids), "top_logprobs": best})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Makes the member `logprobs` of a completion's choices and chunks; text offsets go on from one to the next."""

    def __init__(self, top: int, offset: int = 0, *, by_ids: bool = False) -> None:
        self._top = top
        self._by_ids = by_ids
        self._offset = offset

    def take(self, entries: Entries) -> dict[str, Any]:
        tokens: list[str] = []
        logprobs: list[float] = []
        offsets: list[int] = []
        tops: list[dict[str, Any] | None] = []
        for entry in entries:
            taken = next(iter(entry.items()), None)
            if taken is None:
                continue
            tokens.append(_name(*taken, self._by_ids))
            logprobs.append(taken[1].get("logprob", 0.0))
            offsets.append(self._offset)
            self._offset += len(_name(*taken, False))
            best = _likeliest(entry, self._top)
            tops.append({_name(*each, self._by_ids): each[1].get("logprob") for each in best} or None)
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops}


def _likeliest(entry: Mapping[str, Mapping[str, Any]], top: int) -> list[tuple[str, Mapping[str, Any]]]:
    ranked = sorted(entry.items(), key=lambda item: item[1].get("rank") or 1 << 30)
    return ranked[:top]


def _name(token_id: str, found: Mapping[str, Any], by_ids: bool) -> str:
    return f"token_id:{token_id}" if by_ids else str(found.get("decoded_token") or "")


def _token(token_id: str, found: Mapping[str, Any], token_bytes: TokenBytes, by_ids: bool) -> dict[str, Any]:
    data = token_bytes(int(token_id)) if token_bytes is not None and token_id.isdigit() else b""
    data = data or _name(token_id, found, False).encode("utf-8", "replace")
    return {"token": _name(token_id, found, by_ids), "logprob": found.get("logprob"), "bytes": list(data)}
