"""Roles: declared by every attention layer, matched by patterns, kept in records and files."""

from __future__ import annotations

import json

import pytest
import torch

import regard
from regard.data.batch import Batch, LabelledBatch, TextBatch
from regard.decoding import Beam, Passage, Scored, averaged, search
from regard.decoding.forced_decoding import observe, sites_of
from regard.models import Model, Size, build_model
from regard.named_models.classifiers import build_classifier
from regard.named_models.language_models import build_language_model
from regard.roles import (
    CROSS,
    CROSS_ATTENTION,
    DECODER_SELF,
    ENCODER_SELF,
    POOLING,
    BySite,
    Role,
    matches,
    role_by_name,
    sites_matching,
)
from regard.sites import declared_sites, record
from regard.viewing import Seen, Site, picture

SIZE = Size(width=8, heads=2, inner=8, layers=1)
PAIRS = Batch.collate([[4, 5], [6]], [[4], [5, 6]])

MODELS = {
    "transformer": (lambda: build_model("transformer", 9, 9, size=SIZE), PAIRS),
    "bahdanau": (lambda: build_model("bahdanau", 9, 9, width=4), PAIRS),
    "luong": (lambda: build_model("luong", 9, 9, width=4), PAIRS),
    "lstmn": (lambda: build_model("lstmn", 9, 9, width=4, depth=2), PAIRS),
    "lstmn both ways": (lambda: build_model("lstmn", 9, 9, width=4, both_ways=True), PAIRS),
    "seq2seq": (lambda: build_model("seq2seq", 9, 9, width=4), PAIRS),
    "language": (lambda: build_language_model("transformer", 9, size=SIZE), TextBatch.collate([[4, 5]])),
    "classifier": (
        lambda: build_classifier("transformer", 9, 2, size=SIZE, pooling="attention"),
        LabelledBatch.collate([[4, 5]], labels=[1]),
    ),
}


class Renamed(Model):
    """A model whose cross-attention has a name that says nothing about its role."""

    target_size = 9

    def __init__(self, role: Role | None):
        super().__init__()
        self.site, self.role = "reads", role
        self.embedding = torch.nn.Embedding(9, 4)

    def encode(self, source, lengths):
        memory = regard.prepare(self.embedding(source), mask=regard.padding(lengths))
        return regard.models.Encoded(lengths, (memory,))

    def start(self, encoded):
        return regard.models.State()

    def step(self, state, tokens, encoded):
        from regard.models.base import attend

        query, options = self.embedding(tokens), {"site": self.site, "role": self.role}
        output = attend(query, encoded.memories[0], **options).output
        return state, output @ self.embedding.weight.T


@pytest.mark.parametrize("name", MODELS)
def test_models_list_their_sites_with_roles_before_they_run(name: str):
    build, batch = MODELS[name]
    model = build()
    declared = declared_sites(model)
    with torch.no_grad(), regard.sites.scope(regard.Look(weights=True)) as seen:
        model.eval()(batch)
    assert list(declared) == list(seen.called) and declared.roles == seen.roles == dict(declared)
    # The naming convention agrees with what the layers declare.
    assert all(role_by_name(site) == role for site, role in declared.items())


def test_kinds_and_names_match_patterns():
    assert matches("cross", "reads", CROSS_ATTENTION) and not matches("*cross", "reads", CROSS_ATTENTION)
    assert matches("cross", "decoder.0.cross") and matches("self", "encoder.0.self", ENCODER_SELF)
    assert not matches("cross", "a.cross", DECODER_SELF) and not matches("", "layer")
    assert not matches("encoder", "encoder.0.other")
    assert sites_matching({"a": 1, "b.cross": 2}, CROSS) == ["b.cross"]
    assert sites_matching(BySite({"a": 1, "b.cross": 2}, {"a": CROSS_ATTENTION}), CROSS) == ["a", "b.cross"]


@pytest.mark.parametrize(
    "name, role",
    [
        ("decoder.cross", CROSS_ATTENTION),
        ("encoder.3.self", ENCODER_SELF),
        ("decoder.0.self", DECODER_SELF),
        ("first.pool", POOLING),
        ("layers.1.self", Role("self", "layers", "layers")),
        ("decoder.7", Role("", "target", "input")),
        ("", Role("", "", "")),
    ],
)
def test_roles_of_names(name: str, role: Role):
    assert role_by_name(name) == role


def test_roles_select_calls_of_record_and_intervene():
    x, to_image = torch.eye(2), Role("image", "target", "image")
    with record(at="image") as seen, regard.intervene(uniform=True, at="image") as changed:
        regard.attention(x, x, site="one", role=to_image)
        regard.read(x, x, site="two", role=Role("memory"))
        regard.attention(x, x, site="three")
    assert list(seen) == ["one"] and changed == {"image": 1} and list(seen.called) == ["one", "two", "three"]
    assert seen.roles == {"one": to_image, "two": Role("memory")}


def test_decoding_reads_declared_roles_not_names():
    declared, unknown = Renamed(CROSS_ATTENTION), Renamed(None)
    observed = observe(declared, PAIRS)
    assert sites_of(declared) == ["reads"] and sites_of(unknown) == []
    assert observed.attention_of(1)["reads"].shape == (3, 2) and observed.values_of(1)["reads"].shape == (
        1,
        2,
    )
    assert not observe(unknown, PAIRS).attention
    hypotheses = search(declared, PAIRS, Beam(size=2, coverage=0.5))
    attention = hypotheses[1][0].attention
    assert attention.roles == {"reads": CROSS_ATTENTION}
    assert averaged(attention).shape == (len(hypotheses[1][0].tokens), 2)
    with pytest.raises(regard.ArgumentError):
        search(unknown, PAIRS, Beam(size=2, coverage=0.5))


def test_drawings_read_declared_roles_not_names():
    weights = BySite({"a": torch.eye(2), "b": torch.eye(2)}, {"a": CROSS_ATTENTION, "b": DECODER_SELF})
    pieces, words = ("x", "</s>"), (0, -1)
    passage = Passage(pieces, words, ("y", "</s>"), words, (0.0, 0.0), weights)
    scored = Scored("x", "y", (passage,))
    seen = scored.seen()
    assert scored.alignment is not None and seen.site("a").columns == pieces
    assert seen.site("b").columns == ("<s>", "y") and [site.kind for site in seen.sites] == [
        "cross",
        "decoder",
    ]
    assert seen.words().site("a").role == CROSS_ATTENTION
    assert seen.without_specials(renormalise=False).site("b").role == DECODER_SELF
    assert (
        picture(seen, site="cross").frames and picture(seen, "self").frames and picture(seen, "player").frames
    )
    long = Scored("x x", "y y", (passage, passage))
    assert long.attention.roles == weights.roles and long.seen().site("b").columns == ("<s>", "y", "<s>", "y")


def test_seen_files_keep_roles_and_files_without_roles_load(tmp_path):
    path = tmp_path / "a.seen"
    sites = [
        Site("a", [[1.0]], ["y"], ["x"], role=CROSS_ATTENTION),
        Site("decoder.cross", [[1.0]], ["y"], ["x"]),
    ]
    Seen(sites, ["x"], ["y"], [0], [0]).save(path)
    assert [site.role for site in Seen.load(path).sites] == [CROSS_ATTENTION, CROSS_ATTENTION]
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    (key,) = [key for key, value in header["__metadata__"].items() if "sites" in value]
    about = json.loads(header["__metadata__"][key])
    for site in about["sites"]:
        del site["role"]
    header["__metadata__"][key] = json.dumps(about)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])
    assert [site.role for site in Seen.load(path).sites] == [Role("", "a", "a"), CROSS_ATTENTION]


@pytest.mark.parametrize("role", ["cross", ["a"] * 4, [], {"kind": "self"}, [1, 2, 3]])
def test_damaged_roles_in_seen_files_are_data_errors(tmp_path, role):
    from regard.files.array_file import save_arrays

    path = tmp_path / "a.seen"
    site = {"name": "a", "rows": ["y"], "columns": ["x"], "role": role}
    header = {"source": [], "target": [], "source_words": [], "target_words": [], "sites": [site], "long": []}
    save_arrays(path, "regard.seen", header, {"sites.0.weights": torch.ones(1, 1, 1).numpy()})
    with pytest.raises(regard.DataError):
        Seen.load(path)
