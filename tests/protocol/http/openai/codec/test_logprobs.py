"""Log probabilities in the forms of chat and completions."""

from __future__ import annotations

from typing import Any

from protocol.http.openai.codec.logprobs import CompletionLogprobs, chat_logprobs

# The token that was taken is the second likeliest.
ENTRY: dict[str, dict[str, Any]] = {
    "7": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
    "8": {"logprob": -0.5, "rank": 1, "decoded_token": "aa"},
    "9": {"logprob": -2.5, "rank": 3, "decoded_token": "c"},
}


def test_of_a_chat() -> None:
    made = chat_logprobs([ENTRY, {}], 2, {7: b"\xe2\x82", 8: b"aa"}.__getitem__)
    assert made == {
        "content": [
            {
                "token": "b",
                "logprob": -1.5,
                "bytes": [0xE2, 0x82],
                "top_logprobs": [
                    {"token": "aa", "logprob": -0.5, "bytes": [97, 97]},
                    {"token": "b", "logprob": -1.5, "bytes": [0xE2, 0x82]},
                ],
            }
        ],
        "refusal": None,
    }


def test_without_a_tokenizer_bytes_are_those_of_the_text() -> None:
    (token,) = chat_logprobs([ENTRY], 0)["content"]
    assert token == {"token": "b", "logprob": -1.5, "bytes": [98], "top_logprobs": []}


def test_of_a_completion_offsets_go_on() -> None:
    made = CompletionLogprobs(1, offset=10)
    assert made.take([ENTRY, {}]) == {
        "text_offset": [10],
        "token_logprobs": [-1.5],
        "tokens": ["b"],
        "top_logprobs": [{"aa": -0.5}],
    }
    assert made.take([ENTRY])["text_offset"] == [11]


def test_of_a_completion_without_alternatives() -> None:
    assert CompletionLogprobs(0).take([ENTRY])["top_logprobs"] == [None]


def test_tokens_by_their_ids() -> None:
    """The bytes and offsets are those of their texts still."""
    (token,) = chat_logprobs([ENTRY], 1, by_ids=True)["content"]
    best = {"token": "token_id:8", "logprob": -0.5, "bytes": [97, 97]}
    assert token == {"token": "token_id:7", "logprob": -1.5, "bytes": [98], "top_logprobs": [best]}
    assert CompletionLogprobs(1, by_ids=True).take([ENTRY, ENTRY]) == {
        "text_offset": [0, 1],
        "token_logprobs": [-1.5, -1.5],
        "tokens": ["token_id:7"] * 2,
        "top_logprobs": [{"token_id:8": -0.5}] * 2,
    }
