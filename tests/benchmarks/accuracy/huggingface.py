"""Two models of transformers, with random weights and logits alone as output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 1024
LENGTH = 64


class Logits(nn.Module):
    """A causal language model that returns nothing but its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def build_gpt2() -> Logits:
    """Return a GPT-2 with 8 blocks of width 256."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=256,
        n_layer=8,
        n_head=8,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Logits(transformers.GPT2LMHeadModel(config))


def build_llama() -> Logits:
    """Return a Llama with 6 blocks of width 256 and two query heads for each key."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
    )
    return Logits(transformers.LlamaForCausalLM(config))


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return token ids of shape ``(batch_size, LENGTH)``."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def batches(batch_size: int, seed: int = 0) -> Iterator[tuple[tuple[Tensor], tuple[Tensor]]]:
    """Yield random sequences, and the same ones a token later."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(VOCABULARY, (batch_size, LENGTH + 1), generator=generator)
        yield (rows[:, :-1].contiguous(),), (rows[:, 1:].contiguous(),)
