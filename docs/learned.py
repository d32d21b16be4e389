"""The picture at the top of the README: attention weights that a model learned, kept in learned.json.

    python docs/learned.py                train for two minutes, translate SENTENCE, write docs/learned.json
    python docs/learned.py --minutes 4    the same with more training
    python docs/make.py README            draw docs/pictures/readme-1.svg from learned.json

The model is the one of `regard demo`: bahdanau on the built-in corpus, without guided alignment. The script
writes nothing and exits with 1 if the translation of SENTENCE is not TRANSLATION.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src")]
KEPT = ROOT / "docs" / "learned.json"
READING = ROOT / "docs" / "reading.json"
"""How an LSTMN trained on Penn Treebank reads a sentence: the text, its words, and their weights."""

SENTENCE = "최웅준은 집에서 집중이 안되서 카페에 공부하러 갔다"
TRANSLATION = "Woongjun could not focus at home so he went to a café to study"
TITLE = "Attention weights, Korean to English"
DIGITS = 3


def learn(minutes: float, seed: int) -> dict[str, Any]:
    """Train a model, translate the sentence, and return words, weights and how they were made."""
    from regard.cli.demo import SETTINGS
    from regard.decoding import Greedy
    from regard.tasks.translation import load_translator, train_translation
    from regard.training.settings import merged

    settings = merged(SETTINGS, {"training": {"minutes": minutes}, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        outcome = train_translation(settings, f"{folder}/run")
        translation = load_translator(f"{folder}/run", search=Greedy()).translate(SENTENCE)
    seen = translation.seen().words().without_specials(renormalise=False)
    (site,) = seen.sites
    return {
        "source": list(seen.source),
        "target": list(seen.target),
        "weights": [[round(float(weight), DIGITS) for weight in row] for row in site.weights[0]],
        "model": settings["model"],
        "minutes": minutes,
        "steps": outcome.progress.step,
        "seed": seed,
    }


def written(learned: dict[str, Any]) -> str:
    """Return JSON with one line for each entry and for each row of weights."""
    rows = ",\n  ".join(json.dumps(row) for row in learned["weights"])
    facts = {name: json.dumps(value, ensure_ascii=False) for name, value in learned.items()}
    facts["weights"] = f"[\n  {rows}\n ]"
    return "{\n" + ",\n".join(f' "{name}": {value}' for name, value in facts.items()) + "\n}\n"


def pictures() -> dict[str, Any]:
    """Return the pictures of learned weights, by the names of their files."""
    from regard.viewing import Seen, Site

    learned = json.loads(KEPT.read_text(encoding="utf-8"))
    source, target = learned["source"], learned["target"]
    site = Site("decoder.cross", learned["weights"], target, source)
    seen = Seen([site], source, target, range(len(source)), range(len(target)))
    drawn = {"readme-1": seen.picture("matrix", title=TITLE)}
    if READING.exists():
        kept = json.loads(READING.read_text(encoding="utf-8"))
        words = kept["words"]
        site = Site("decoder.0.self", kept["weights"], words, words)
        seen = Seen([site], (), words, (), range(len(words)))
        drawn["models-lstmn-1"] = seen.picture("reading", title=kept["text"])
    return drawn


def main() -> int:
    """Train the model and write its attention weights."""
    parser = argparse.ArgumentParser(description="Learn the attention weights of the picture in the README.")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to train (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    given = parser.parse_args()
    learned = learn(given.minutes, given.seed)
    translated = " ".join(learned["target"])
    if translated != TRANSLATION:
        print(f"the translation is {translated!r}: train longer, or with another --seed", file=sys.stderr)
        return 1
    KEPT.write_text(written(learned), encoding="utf-8")
    print(f"wrote {KEPT.relative_to(ROOT)} after {learned['steps']} steps; now: python docs/make.py README")
    return 0


if __name__ == "__main__":
    sys.exit(main())
