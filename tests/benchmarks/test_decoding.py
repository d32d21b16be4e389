"""benchmarks.decoding: the peer in plain PyTorch computes the same beam search as Regard."""

from __future__ import annotations

import torch

from benchmarks.decoding_peers import eager_beam_search
from regard.data.batch import Batch
from regard.decoding import Beam, Rules, search
from regard.models.bahdanau import Bahdanau


@torch.no_grad()
def test_plain_pytorch_finds_the_same_tokens() -> None:
    torch.manual_seed(0)
    model = Bahdanau(20, 20, 8).eval().double()
    batch = Batch.collate([[4, 5, 6], [7, 8, 9], [10, 11, 12]])
    # The peer never generates EOS, so that each output has the maximum length.
    model.readout.output.bias[3] = -1e4
    tokens = eager_beam_search(model, batch, beams=4, length=9)()
    hypotheses = search(model, batch, Beam(4, rules=Rules(maximum=9)), look=None)
    assert [best.tokens for best, *_ in hypotheses] == [tuple(row) for row in tokens.tolist()]
