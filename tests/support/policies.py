"""A tiny policy and its tokenizer, which no host is needed for."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "0123456789+-*=() abcdefghijklmnopqrstuvwxyz?"


def tiny_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    if chat:
        tokenizer.chat_template = (
            "{% for m in messages %}{{ m['role'][0] }}({{ m['content'] }}){% endfor %}"
            "{% if add_generation_prompt %}a({% endif %}"
        )
    return tokenizer


def tiny_model(
    seed: int = 0, learned_positions: bool = False, dtype: torch.dtype = torch.float32, width: int = 32
) -> torch.nn.Module:
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    size = len(CHARACTERS) + 4
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if learned_positions:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=size, n_positions=128, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                attn_pdrop=0.0, initializer_range=0.2, **tokens,
            )
        )  # fmt: skip
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=size, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, **tokens,
            )
        )  # fmt: skip
    torch.random.set_rng_state(state)
    return model.to(dtype)
