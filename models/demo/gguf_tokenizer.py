"""The byte-level BPE tokenizer of SmolLM2, out of the metadata of a GGUF file."""

from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..errors import CheckpointError, UnsupportedModelError


def tokenizer_from_gguf(reader: GGUFReader, max_length: int) -> PreTrainedTokenizerFast:
    """A fast tokenizer with chat template. Raises UnsupportedModelError unless it splits text as SmolLM2's does."""

    def read(key: str) -> Any:
        field = reader.get_field(f"tokenizer.{key}")
        if field is None:
            raise CheckpointError(f"the GGUF file lacks tokenizer.{key}")
        return field.contents()

    if (read("ggml.model"), read("ggml.pre")) != ("gpt2", "smollm"):
        raise UnsupportedModelError(f"tokenizer {read('ggml.model')}/{read('ggml.pre')} is not SmolLM2's")
    tokens: list[str] = read("ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in read("ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, read("ggml.token_type"), strict=True)
    special = [token for token, kind in kinds if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[read("ggml.bos_token_id")],
        eos_token=tokens[read("ggml.eos_token_id")],
        pad_token=tokens[read("ggml.padding_token_id")],
        unk_token=tokens[read("ggml.unknown_token_id")],
        chat_template=read("chat_template"),
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
