"""The ground floor, layers/ and models/, trains and decodes without the room of fast twins."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.reading import PACKAGE

PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] == ["regard", "fast"]:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

import torch
from regard.data.batch import BOS, EOS, Batch
from regard.models import MODELS, build_model

torch.manual_seed(0)
batch = Batch.collate([[4, 5, 6], [7, 8]], [[5, 4, 6], [8, 7]])
for name in MODELS:
    small = {"size": "tiny"} if name == "transformer" else {"width": 16}
    model = build_model(name, 9, 9, **small, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        encoded = model.encode(batch.source, batch.source_lengths)
        state, tokens, words = model.start(encoded), torch.full((2, 1), BOS), []
        for _ in range(4):
            state, logits = model.step(state, tokens, encoded)
            tokens = logits[:, -1:].argmax(-1)
            words.append(tokens)
    print(name, torch.cat(words, 1).tolist())
assert not any(name.startswith("regard.fast") for name in sys.modules)
"""


def test_models_train_and_decode_without_fast_twins():
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    rows = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert len(rows) >= 5 and set(rows.values()) == {"[[5, 4, 6, 3], [8, 7, 3, 0]]"}
