"""Continue a text with a language model, to show during training what it has learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.decoding.sampling import Sample
from regard.models.base import in_eval_mode
from regard.models.language_base import LanguageModel

__all__ = ["continue_text", "first_token"]

TOP_K = 20
"""Each token is sampled from this many of the most probable ones."""


def first_token(layout: str) -> int:
    """Return the input from which the first token of a line is predicted.

    A document begins with BOS. In a continuous text there is no BOS: EOS ends the line before.

    >>> first_token("documents"), first_token("continuous")
    (2, 3)
    """
    return BOS if layout == "documents" else EOS


@torch.no_grad()
def continue_text(
    model: LanguageModel, first: int, prompt: Sequence[int], count: int, *, seed: int = 0
) -> list[int]:
    """Sample a continuation of a prompt, up to EOS or `count` tokens; deterministic for each seed.

    first: the token before the prompt, first_token(). PAD, BOS and UNK are never sampled.

    >>> from regard.models import build_language_model
    >>> model = build_language_model("lstm", 9, width=4)
    >>> 0 < len(continue_text(model, BOS, [7, 8], 5)) <= 5
    True
    """
    device = model.embedding.weight.device
    how, chances = Sample(top_k=TOP_K), torch.rand(count, generator=torch.Generator().manual_seed(seed))
    encoded = model.source_free(1)
    tokens: list[int] = []
    room = count if model.longest_target is None else min(count, model.longest_target - len(prompt))
    with in_eval_mode(model):
        state, last = model.start(encoded), torch.tensor([[first, *prompt]], device=device)
        for chance in chances[: max(room, 0)]:
            state, logits_1TV = model.step(state, last, encoded)
            scores_1V = logits_1TV[:, -1].float()
            scores_1V[:, [PAD, BOS, UNK, *([EOS] if not tokens else [])]] = -torch.inf
            token = int(how.draw(scores_1V, chance[None].to(device)))
            if token == EOS:
                break
            tokens.append(token)
            last = torch.tensor([[token]], device=device)
    return tokens
