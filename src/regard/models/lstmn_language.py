"""LSTMN language model: a long short-term memory-network predicts the next token (Cheng et al. 2016)."""

from __future__ import annotations

from functools import partial

from regard.layers.lstmn import LSTMN, WindowReading
from regard.models.recurrent_language import StatefulLanguageModel
from regard.options.model_checks import check_lstmn_language, checked
from regard.roles import READING_SELF

__all__ = ["LSTMNLanguageModel"]


class LSTMNLanguageModel(WindowReading, StatefulLanguageModel):
    """Language model of LSTMN layers: each token attends to the tokens before it (Cheng et al. 2016).

    h_t = LSTMN(D(E x_t), tapes),  p(x_t+1) = softmax(W D(h_t) + b)

    E x_t is the embedding of token x_t. D is dropout, which is also used between layers. The tapes store
    the hidden and cell states of earlier tokens, and the LSTMN attends to these states. The attention of
    layer k has the site "decoder.{k}.self". Row t of its weights belongs to token x_t, which attends to the
    tokens x_i with i < t.

    vocabulary_size: number of tokens V.
    width: size of the states.
    embedding: size of the token embeddings. Default: width.
    hidden: size of the tanh layer of the score functions. Default: width.
    depth: number of layers.
    connections: what layer k + 1 reads. "plain": the output of layer k. "skip": the output of layer k and the
        input of the first layer. "gated": the output of layer k; also, a gate adds the cell state of layer k
        to the cell state of layer k + 1.
    tape: number of past tokens that a token can attend to, or "window", see below.
    dropout: probability of D.
    tie: whether embedding and output layer share their weights. Then embedding must equal width.
    uniform: if set, all initial weights and biases are sampled uniformly from [-uniform, uniform].

    The tapes are empty at the start of a document, of a text to score and of a prompt. Continuous text is
    read in windows, one after the other. There, the tapes are empty only at the start of an epoch or of an
    evaluation.

    If `tape` is a number, a token can also attend to tokens of earlier windows. If it is "window", a token
    can attend to all earlier tokens of its own window, and to the last token of the window before. Then the
    evaluation needs windows of the same length as in training: evaluation.window = data.window.

    >>> from regard.data.batch import TextBatch
    >>> model = LSTMNLanguageModel(vocabulary_size=9, width=8, depth=2)
    >>> model(TextBatch.collate([[4, 5, 6], [7]])).shape
    torch.Size([2, 4, 9])
    """

    @checked(check_lstmn_language)
    def __init__(
        self,
        vocabulary_size: int,
        *,
        width: int = 256,
        embedding: int | None = None,
        hidden: int | None = None,
        depth: int = 1,
        connections: str = "skip",
        tape: int | str = 50,
        dropout: float = 0.0,
        tie: bool = False,
        uniform: float | None = None,
    ):
        inputs = width if embedding is None else embedding
        layers = partial(
            LSTMN,
            inputs,
            width,
            hidden=hidden,
            depth=depth,
            connections=connections,
            dropout=dropout,
            tape=None if isinstance(tape, str) else tape,
            site="decoder",
            role=READING_SELF,
        )
        super().__init__(layers, (vocabulary_size, inputs, width), dropout, tie, uniform)
        self.tape = tape
