"""Text to tokens and back, and the prefix cache's reset; as in vLLM."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from . import handles
from .body import body_docs, parse_body
from .context import context_of
from .responses import DetokenizeAnswer, ResetAnswer, TokenizeAnswer
from .schemas import DetokenizeRequest, TokenizeRequest

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=body_docs(TokenizeRequest), response_model=TokenizeAnswer)
async def tokenize(request: Request) -> Response:
    """The tokens that a prefill of the same text or conversation would compute."""
    context = context_of(request)
    body = await parse_body(request, context.config, TokenizeRequest)
    context.check_model(body.model)
    tokenizer = context.tokenizer
    if body.messages is not None:
        messages = [message.model_dump(exclude_unset=True) for message in body.messages]
        text, special = await tokenizer.render(messages, body.add_generation_prompt), False
    else:
        text, special = body.prompt, body.add_special_tokens
    tokens = await tokenizer.encode_any_length(text, special)
    answer = {
        "count": len(tokens),
        "max_model_len": tokenizer.max_model_len,
        "tokens": tokens,
        "token_strs": tokenizer.token_strings(tokens) if body.return_token_strs else None,
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post("/detokenize", openapi_extra=body_docs(DetokenizeRequest))
async def detokenize(request: Request) -> DetokenizeAnswer:
    """The text of token ids."""
    context = context_of(request)
    body = await parse_body(request, context.config, DetokenizeRequest)
    context.check_model(body.model)
    return DetokenizeAnswer(prompt=await context.tokenizer.decode(body.tokens))


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> ResetAnswer:
    """Drops every reusable block and snapshot that no request and no handle needs."""
    await handles.reset_cache(context_of(request).client)
    return ResetAnswer()
