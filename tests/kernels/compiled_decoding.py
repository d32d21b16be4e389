"""Compile the kernels of decoding for Hopper, without a GPU; test_compiling.py runs this file in a
subprocess."""

from __future__ import annotations

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from regard.decoding import Beam, Greedy
from regard.fast.search import bahdanau_decoder
from regard.fast.search.bahdanau_decoder import BahdanauDecoder
from regard.fast.search.beams import BeamSlots
from regard.fast.search.slots import GreedySlots
from regard.fast.search.transformer_decoder import FusedTransformerDecoder
from regard.kernels.search.beam import beam_step, find_candidates, greedy_step
from regard.models.bahdanau import Bahdanau
from regard.models.transformer import Size, Transformer
from tests.kernels.compiled import Hopper, compiling

SLOTS, WORDS, LENGTH = 3, 5000, 9


def main() -> None:
    """Compile each kernel in each dtype used in decoding."""
    driver.set_active(Hopper())
    JITFunction.__getitem__ = compiling
    generated, barred = torch.zeros(SLOTS, dtype=torch.long), torch.zeros(WORDS, dtype=torch.uint8)
    bahdanau_decoder.by_kernel = lambda tensor: True  # type: ignore[attr-defined]
    recurrent = Bahdanau(40, 40, 24).eval().requires_grad_(False)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = (
            Transformer(40, 40, Size(width=40, heads=4, inner=60, layers=1))
            .to(dtype)
            .eval()
            .requires_grad_(False)
        )
        for how, beams in ((Greedy(), 1), (Beam(3, best=2), 3)):
            decoders = (
                FusedTransformerDecoder(model, SLOTS, beams, LENGTH, 7),
                BahdanauDecoder(recurrent.to(dtype), SLOTS, beams, LENGTH, 7),
            )
            tokens = torch.zeros(SLOTS, beams, dtype=torch.long)
            for decoder in decoders:
                if beams > 1:
                    decoder.record(1, model.output.weight)
                decoder.step(tokens, tokens, generated, LENGTH)
            count = 2 * beams if beams > 1 else 1
            logits = torch.zeros(SLOTS * beams, WORDS, dtype=dtype)
            found = find_candidates(logits, count, barred, generated, 3, 3)
            if isinstance(how, Beam):
                search = BeamSlots(decoder, how, 0, LENGTH, generated.device)
                assert beam_step(logits, found, search, 3)
            else:
                greedy_step(found, GreedySlots(decoder, how.rules, 0, generated.device), 3)


if __name__ == "__main__":
    main()
