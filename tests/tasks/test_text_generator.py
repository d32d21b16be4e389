"""Generated text: results, stop strings, streaming, unknown words, long texts, and invalid options."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

import regard
from regard.data.batch import BOS, EOS, TextBatch
from regard.data.tokenizers import Tokenizer, train_tokenizer
from regard.decoding import Beam, Greedy, Rules, Sample
from regard.errors import ArgumentError
from regard.models import LanguageModel, State, build_language_model
from regard.runs.run_task import StoredRun
from regard.tasks.language import GeneratedText, LanguageRun, LanguageSettings
from regard.tasks.language import run as language_run
from regard.tasks.language.run import TextStream, continuation
from regard.tasks.language.settings import TextData
from regard.viewing import Seen, picture
from tests.facts import facts

LINES = ["I learned CS", "you learned music and art", "a b c d e f"]
WORDS = train_tokenizer("word", LINES)
BYTES = train_tokenizer("bpe", ["low lower lowest"] * 9, size=280)


class Scripted(LanguageModel):
    """After a prompt of n tokens, generates the n-th token of a script, and so on."""

    def __init__(self, size: int, script: list[int], longest: int | None = None):
        super().__init__()
        self.target_size, self.script, self.longest_target = size, torch.tensor(script), longest
        self.embedding = torch.nn.Embedding(size, 1)

    def step(self, state: State, tokens: torch.Tensor, encoded: Any) -> tuple[State, torch.Tensor]:
        position = state.position + torch.arange(tokens.shape[1])
        following = self.script[position.clamp(max=len(self.script) - 1)]
        logits = 9.0 * one_hot(following, self.target_size).expand(len(tokens), -1, -1)
        return State(state.position + tokens.shape[1]), logits


def run_of(model: LanguageModel, tokenizer: Tokenizer = WORDS, layout: str = "documents") -> LanguageRun:
    settings = LanguageSettings(data=TextData(train_file=["a.txt"], layout=layout))
    run = StoredRun(Path("run"), settings, None)  # type: ignore[arg-type]
    return LanguageRun(model.eval(), tokenizer).from_run(run)


def scripted(text: str, tokenizer: Tokenizer = WORDS, **options: Any) -> LanguageRun:
    return run_of(Scripted(tokenizer.size, [*tokenizer.encode(text), EOS], **options), tokenizer)


def small(**options: Any) -> LanguageRun:
    torch.manual_seed(1)
    size = {"width": 8, "heads": 2, "inner": 8, "layers": 2, "dropout": 0.0}
    return run_of(build_language_model("transformer", WORDS.size, **{**size, **options}))


def test_result_has_prompt_text_tokens_scores_and_reason(tmp_path: Path):
    run = scripted("I learned CS")
    result = run.generate("I learned")
    assert (str(result).split(), result.text, result.pieces) == (
        ["I", "learned", "CS"],
        " CS",
        ("CS", "</s>"),
    )
    assert (result.prompt, result.prompt_pieces, result.stop_reason) == ("I learned", ("I", "learned"), "end")
    assert result.log_probability == sum(result.token_scores) and len(result.token_scores) == 2
    assert not result.attention and not result.unknown and not result.notes
    record = json.loads(json.dumps(result.to_dict()))
    assert record["token_ids"] == list(result.token_ids) == [*WORDS.encode("CS"), EOS]
    result.save(tmp_path / "text.html")
    assert "I learned<b> CS</b>" in (tmp_path / "text.html").read_text()
    assert str(run.generate("")) == "I learned CS"  # without a prompt


def test_an_empty_continuation_has_a_note():
    result = scripted("I learned CS").generate("I learned CS")
    assert (result.text, result.stop_reason, result.pieces) == ("", "end", ("</s>",))
    assert len(result.notes) == 1 and "empty" in result.notes[0]


def test_several_prompts_of_different_lengths_equal_one_by_one():
    run, prompts = small(), ["I learned", "you", "a b c", "", "you learned"]
    for how in (Greedy(), Beam(size=3, best=2), Sample(seed=5)):
        together = run.generate(prompts, search=how, max_new_tokens=6, tokens_per_batch=20)
        assert [each.prompt for each in together] == prompts
        assert list(run.stream(iter(prompts), 2, search=how, max_new_tokens=6))[3].text == together[3].text
        if not isinstance(how, Sample):  # the samples of a prompt depend on its index
            alone = [run.generate(prompt, search=how, max_new_tokens=6) for prompt in prompts]
            assert [each.token_ids for each in alone] == [each.token_ids for each in together]
            others = [[each.text for each in result.others] for result in together]
            assert [[each.text for each in result.others] for result in alone] == others
            assert any(others) == isinstance(how, Beam)
    again = run.generate(prompts, search=Sample(seed=5), max_new_tokens=6)
    assert [each.text for each in again] == [each.text for each in together]


@pytest.mark.parametrize("how", [Greedy(), Sample(), Beam(size=2, best=1)])
@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [("c", "b ", "stop"), (("e f", "d e"), "b c ", "stop"), ("I learned", "b c d e f", "end")],
)
def test_text_ends_before_a_stop_string(how, stop, text: str, reason: str):
    result = scripted("a b c d e f").generate("a", search=how, stop=stop)
    assert (result.text, result.stop_reason) == (f" {text}", reason)


def test_stop_string_is_found_after_many_tokens():
    script = " ".join(["a b"] * 40) + " I learned CS"
    shown: list[str] = []
    result = scripted(script).generate("a", stop=["learned CS"], max_new_tokens=200, on_text=shown.append)
    assert result.text.endswith("a b I ") and result.stop_reason == "stop" and len(result.token_ids) == 82
    assert "".join(shown) == result.text


def test_limits_are_the_new_tokens_and_the_positions_of_the_model():
    run = scripted("a b c d e f a b c d e f", longest=8)
    assert run.generate("a b", max_new_tokens=3).pieces == ("c", "d", "e")
    assert run.generate("a b", max_new_tokens=3).stop_reason == "length"
    assert run.generate("a", search=Greedy(Rules(maximum=2))).pieces == ("b", "c")
    full = run.generate("a b", max_new_tokens=50)
    assert (len(full.token_ids), full.stop_reason) == (6, "positions") and "8 positions" in full.notes[0]
    with pytest.raises(ArgumentError, match=facts("prompt 2", "8 tokens")):
        run.generate(["a", "a b c d e f a b"])


def test_generation_ends_when_the_caller_stops_it():
    calls = [0]

    def stopping() -> bool:
        calls[0] += 1
        return calls[0] >= 3

    results = scripted("a b c d e f").generate(["a", "a b"], stopping=stopping)
    assert [(each.prompt, each.text, each.stop_reason) for each in results] == [
        ("a", " b c d", "interrupted")
    ]


def test_prompts_left_out_keep_their_place():
    """Prompts of equal length are one batch, so the second prompt comes after the third."""
    stops = [False]
    run = scripted("a b c d e f")
    options = {"max_new_tokens": 2, "tokens_per_batch": 1, "stopping": lambda: stops[0]}
    search = language_run.search

    def stop_after_two(*arguments: Any, **rest: Any) -> Any:
        batches.append(None)
        stops[0] = len(batches) == 2
        return search(*arguments, **{**rest, "stopping": None})

    batches = list[None]()
    with mock.patch.object(language_run, "search", stop_after_two):
        results = run.generate(["a", "a b", "a", "a b c"], **options)
    assert [(each.prompt, each.text, each.stop_reason) for each in results] == [
        ("a", " b c", "length"),
        ("a b", "", "interrupted"),
        ("a", " b c", "length"),
    ]


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"prompts": 3}, "int"), ({"prompts": b"a"}, "bytes"), ({"prompts": "a", "stop": 3}, "int")],
)
def test_arguments_of_wrong_types(options: dict[str, Any], kind: str):
    with pytest.raises(ArgumentError, match=kind):
        scripted("a b").generate(**options)


@pytest.mark.parametrize("text", ["low 낮은 lower", "é low 👩‍👩‍👧‍👦 lowest", "low\u0301 ñ ½ …"])
@pytest.mark.parametrize("prompt", ["", "low"])
def test_streamed_pieces_join_to_the_text(text: str, prompt: str):
    """Characters outside the vocabulary are several tokens, one for each byte."""
    whole = f"{prompt} {text}".strip()
    shown: list[str] = []
    result = scripted(whole, BYTES).generate(prompt, on_text=shown.append)
    assert str(result) == unicodedata.normalize("NFC", whole)
    assert unicodedata.normalize("NFC", "".join(shown)) == result.text
    assert len(shown) > 1 and "\ufffd" not in "".join(shown)


def test_streamed_text_of_invalid_bytes_is_the_decoded_text():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        tokens = torch.randint(4, BYTES.size, (30,), generator=generator).tolist()
        stream = TextStream(BYTES, [], [])
        pieces = [stream.push(tokens[: size + 1]) for size in range(len(tokens))]
        text = continuation(BYTES, [], tokens)
        shown = "".join(pieces) + stream.push(tokens, last=True)
        assert shown.replace("\ufffd", "") == text.replace("\ufffd", "")


def test_unknown_words_of_the_prompt():
    run = scripted("I learned CS")
    partly = run.generate("zebra learned")
    assert (
        partly.unknown == ("zebra",)
        and "'zebra'" in partly.all_notes[0]
        and str(partly) == "zebra learned CS"
    )
    with pytest.raises(ArgumentError, match=facts("prompt 2", "'zebra'", "'yak'")):
        run.generate(["I", "zebra yak"])
    spelled = scripted("low 낮", BYTES).generate("낮")  # known as bytes
    assert spelled.unknown == ("낮",)
    closed = train_tokenizer("closed-word", ["a <unk> b"])
    assert run_of(Scripted(closed.size, [5, EOS]), closed).generate("<unk>").unknown == ()


def test_continuous_text_begins_with_eos_and_lines_end_with_it():
    model = build_language_model("lstm", WORDS.size, width=4)
    continuous = run_of(model, layout="continuous")
    assert continuous.encode_prompt("a b\nc", "here") == [
        *WORDS.encode("a b"),
        EOS,
        *WORDS.encode("c"),
    ]
    tokens = [EOS, *WORDS.encode("I")]
    with torch.no_grad():
        logits = model(
            TextBatch(torch.tensor([tokens]), torch.tensor([tokens]), torch.tensor([2]), torch.zeros(1))
        )
    expected = logits[0, -1].log_softmax(-1)
    result = continuous.generate("I", max_new_tokens=1)
    assert result.token_scores[0] == pytest.approx(expected[result.token_ids[0]].item(), abs=1e-5)
    assert result.first_piece == "</s>" and run_of(model).generate("I").first_piece == "<s>"


def test_attention_of_every_layer_is_over_the_text_so_far(tmp_path: Path):
    result = small().generate("I learned", look="*", max_new_tokens=3)
    seen = result.seen()
    assert [site.name for site in seen.sites] == ["decoder.0.self", "decoder.1.self"]
    for site in seen.sites:
        assert site.rows == (*result.prompt_pieces, *result.pieces)
        assert site.columns == ("<s>", *site.rows[:-1])
        np.testing.assert_allclose(site.weights.sum(-1), 1, atol=1e-5)
        assert not np.triu(site.weights, 1).any()
    drawn = list(result.pictures())
    assert len(drawn) == 2 and "learned" in drawn[0].svg()
    assert "learned" in picture(result).svg() and result._repr_html_().count("<svg") == 2
    with pytest.raises(ArgumentError, match=facts("*cross", "decoder.0.self")):
        small().generate("I", look="*cross")


def test_attention_over_2048_tokens_is_bounded(tmp_path: Path):
    """Of each token, the largest weights are kept, and pictures have a bounded size."""
    torch.manual_seed(2)
    run = small(layers=1, position="rotary")
    prompt = " ".join(["a b c d e f I you"] * 255)
    result = run.generate(prompt, look="*", search=Greedy(Rules(minimum=8, maximum=8)))
    assert len(result.read_pieces) == 2048 > language_run.LONG and not result.attention
    (long,) = result.long
    assert long.keys.shape == (2, 2048, 32) and long.maxima.shape == (2, 256, 256)
    tokens = torch.tensor([[BOS, *result.prompt_token_ids, *result.token_ids]])
    with torch.no_grad(), regard.record() as recorded:
        run.model(TextBatch(tokens[:, :-1], tokens[:, 1:], torch.tensor([2048]), torch.zeros(1)))
    exact = recorded["decoder.0.self"][0].weights[0]
    np.testing.assert_allclose(long.weights, exact.topk(32).values, atol=1e-6)
    result.save(tmp_path / "long.html")
    assert (tmp_path / "long.html").stat().st_size < 500_000
    result.seen().save(tmp_path / "long.seen")
    assert len(Seen.load(tmp_path / "long.seen").picture("long").svg()) < 200_000
    with pytest.raises(ArgumentError, match="long"):
        picture(result)
    scored = run.score(prompt, look="*")
    assert scored.long[0].weights.shape == (2, 2041, 32)


def test_texts_of_medium_length_are_drawn_as_maps():
    scored = small(layers=1).score(" ".join(["a b"] * 50), look="*")
    (drawn,) = scored.pictures()
    assert scored.attention["decoder.0.self"].shape == (2, 101, 101) and len(drawn.svg()) < 50_000


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"search": "beam"}, "search is 'beam'"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 4, "search": Greedy(Rules(maximum=3))}, "max_new_tokens"),
        ({"stop": [""]}, "stop string"),
        ({"stop": ["x"] * 101}, "101 stop strings"),
        ({"on_text": print, "search": Beam()}, "on_text"),
        ({"tokens_per_batch": 0}, "tokens_per_batch"),
    ],
)
def test_invalid_options_are_errors(options: dict[str, Any], fact: str):
    with pytest.raises(ArgumentError, match=fact):
        scripted("a b").generate("a", **options)
    with pytest.raises(ArgumentError, match="prompt 2"):
        scripted("a b").generate(["a", 3])  # type: ignore[list-item]


def test_hostile_text_is_escaped():
    tokenizer = train_tokenizer("word", ["<script>alert(1)</script> a"])
    result = scripted("a <script>alert(1)</script>", tokenizer).generate("a")
    assert isinstance(result, GeneratedText) and "<script>" in result.text
    assert "<script>" not in result._repr_html_()
