"""Handlers of `/score` and `/rerank`: how well texts fit each other, by a cross-encoder or by a model that embeds."""

from __future__ import annotations

import trio

from protocol.gen_ai import RERANK, SCORE, Generated
from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import Call, open_call, queue_priority, read_body
from protocol.http.openai.codec.pairs import SIDE_CUTS, PairEncoder, decode_scores, refuse_cuts
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import RerankRequest, ScoreRequest, ScoringFields
from protocol.http.openai.codec.scores import TextPairs, cosines, rerank_answer, rerank_pairs, score_answer, score_pairs
from protocol.http.openai.errors import FieldError
from protocol.http.openai.observation import observe, observed_run
from protocol.http.openai.single_answers import single_answers
from protocol.http.openai.threads import in_thread
from protocol.http.openai.vectors import Wanted, embed, embeds
from protocol.http.reply import Reply
from protocol.sync.sliced import run_sliced
from protocol.text.model import PairTensors

_SCORE = BodyReader(ScoreRequest)
_RERANK = BodyReader(RerankRequest)


async def score(request: HttpRequest) -> Reply:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _SCORE)
    call = await open_call(request, body.model, body.request_id, "score")
    scores, tokens = await _scored(call, body, score_pairs(body), SCORE)
    return call.reply(score_answer(call.id, call.created, call.target.name, scores, tokens))


async def rerank(request: HttpRequest) -> Reply:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _RERANK)
    call = await open_call(request, body.model, body.request_id, "rerank")
    pairs = rerank_pairs(body)
    scores, tokens = await _scored(call, body, pairs, RERANK)
    answer = rerank_answer(call.id, call.target.name, body, pairs, scores, tokens)
    return call.reply_in_parts(await run_sliced(answer))


async def _scored(call: Call, body: ScoringFields, given: TextPairs, operation: str) -> tuple[list[float], int]:
    """The score of each pair, and the tokens that it took, 0 where nobody counts them."""
    target = call.target
    if target.adapter:
        raise FieldError(f"adapter '{target.name}' of model '{target.text.name}' scores no texts", "model")
    if target.text.pairs is not None:
        return await _by_pairs(call, body, given, target.text.pairs, operation)
    if embeds(target.text):
        return await _by_vectors(call, body, given, operation)
    raise FieldError(f"model '{target.text.name}' scores no texts", "model")


async def _by_pairs(
    call: Call, body: ScoringFields, given: TextPairs, pairs: PairTensors, operation: str
) -> tuple[list[float], int]:
    core, text = call.request.core, call.target.text
    encoder = PairEncoder(text, pairs, core.model_metadata(call.target.model), call.id)
    encoded = await in_thread(call.request, lambda: encoder.encode(body, given))
    batches = encoded.batches
    requests = [batch.request for batch in batches]
    for inference in requests:
        inference.priority = queue_priority(body.priority)
    seen = observe(call, operation, requests, {})
    call.begin(requests)
    activates = body.use_activation is not False
    with observed_run(requests):
        found = await single_answers(
            core,
            requests,
            lambda place, response: decode_scores(pairs, response, len(batches[place].places), activates=activates),
        )
        if seen is not None:
            seen.succeed(Generated(encoded.tokens or None))
    call.settle_tokens(encoded.tokens)
    scores = [0.0] * len(given.second)
    for batch, values in zip(batches, found, strict=True):
        for place, value in zip(batch.places, values, strict=True):
            scores[place] = value
    return scores, encoded.tokens


async def _by_vectors(call: Call, body: ScoringFields, given: TextPairs, operation: str) -> tuple[list[float], int]:
    """Each text is embedded once."""
    name = call.target.text.name
    refuse_cuts(body, f"model '{name}' embeds texts, whose sides are alike", SIDE_CUTS)
    labels = {
        text: f"{field}[{place}]"
        for field, side in zip(given.fields, (given.first, given.second), strict=True)
        for place, text in enumerate(side)
    }
    texts = list(labels)
    wanted = Wanted(truncate=body.truncate_prompt_tokens, labels=list(labels.values()))
    vectors, tokens = await embed(call, texts, wanted, priority=queue_priority(body.priority), operation=operation)
    by_text = dict(zip(texts, vectors, strict=True))
    first, second = ([by_text[each] for each in side] for side in (given.first, given.second))
    return await trio.to_thread.run_sync(cosines, first, second, name), tokens
