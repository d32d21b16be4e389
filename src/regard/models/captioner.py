"""Captioner: an LSTM generates the caption of an image, and attends to the image (Xu et al. 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.image_encoders import build_image_encoder
from regard.layers.image_attention import (
    IMAGE_ATTENTION,
    NO_ATTENTION,
    READINGS,
    CaptionInputs,
    ImageAttention,
)
from regard.layers.recurrent import Recurrence, Recurrent
from regard.look import Look
from regard.models.base import Encoded, Model, State, words
from regard.options.attention_options import ScoreOption, SelectOption
from regard.options.model_checks import (
    at_least_one,
    captions_per_image,
    check_caption_weights,
    check_captioner,
    checked,
)

__all__ = ["IMAGE_ATTENTION", "NO_ATTENTION", "READINGS", "Captioner", "doubly_stochastic_penalty"]


class Captioner(Model, ImageAttention):
    """An LSTM that generates the caption of an image and attends to the L feature vectors of the image.

    The model is Show, Attend and Tell (Xu et al. 2015):

    a_i   = feature vector i of the image, i = 1 .. L                 (section 3.1.1)
    c_0   = tanh(W_c mean_i a_i + b_c),  h_0 = tanh(W_h mean_i a_i + b_h)
    alpha = softmax_i(f_att(a_i, h_{t-1})),  f_att(a, h) = v . tanh(W h + U a)  (eq. 4 and 5)
    z_t   = beta_t sum_i alpha_ti a_i,  beta_t = sigmoid(f_beta(h_{t-1}))       (section 4.2.1)
    h_t, c_t = LSTM([E y_{t-1}; z_t], h_{t-1}, c_{t-1})               (eq. 1 to 3)
    p(y_t) = softmax(L_o(E y_{t-1} + L_h h_t + L_z z_t))              (eq. 7)

    vocabulary_size: number of tokens V.
    image_encoder, encoder_options: name and options of the image encoder, see build_image_encoder().
    width: size of the LSTM state.
    embedding: size of the word embeddings (m in the paper).
    query: "state": the query is h_{t-1}, as in the paper. It depends only on the words up to y_{t-2}. "word":
        the query is [h_{t-1}; E y_{t-1}], with the embedding of the last word.
    score: the score function: a name, a mapping such as {"name": "additive", "hidden": 64}, or a Score. If it
        needs queries and keys of the same size, as dot does, the feature vectors are projected to keys of the
        size of the query.
    select: how scores become weights. "softmax" is the soft attention of the paper. "hard" is the hard
        attention of the paper: it samples one location, and needs the setting training.estimator. The other
        selections of attend(), such as "straight-through", can be used too. "none" is a baseline without
        attention, which reads the mean of the feature vectors.
    gate: whether to multiply the context by beta_t, one number for each step.
    dropout: dropout probability of the word embeddings, the feature vectors and the input of L_o.

    Differs from the paper: the default of `query` is "word". With "state", the model would choose a location
    for the word after "a small red" before it has read "red".

    The attribute `read` of ImageAttention, which can be changed at any time, says how hard attention reads
    the image in eval mode: "argmax" (the location with the highest score), "sample" (a random location), or
    "expectation" (the mean weighted by the softmax, as in soft attention).

    The attention has the site "decoder.cross" and the role IMAGE_ATTENTION. The weights of row t, over the L
    locations from left to right and top to bottom, are those for predicting word y_t.

    >>> from types import SimpleNamespace
    >>> model = Captioner(vocabulary_size=9, width=8, encoder_options={"features": 8, "channels": 4})
    >>> image, inputs = torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.tensor([[2, 4, 5], [2, 6, 0]])
    >>> model(SimpleNamespace(image=image, inputs=inputs)).shape
    torch.Size([2, 3, 9])
    """

    steps_use_position = False

    @checked(check_captioner)
    def __init__(
        self,
        vocabulary_size: int,
        *,
        image_encoder: str = "convolutional",
        encoder_options: Mapping[str, Any] | None = None,
        width: int = 128,
        embedding: int = 64,
        query: str = "word",
        score: ScoreOption = "additive",
        select: SelectOption = "softmax",
        gate: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.target_size, self.width = vocabulary_size, width
        self.query = query
        query_size = width + embedding if query == "word" else width
        self.image_encoder = build_image_encoder(image_encoder, **(encoder_options or {}))
        features = self.image_encoder.features
        self.set_up_image(query_size, features, score, select)
        self.target = words(vocabulary_size, embedding)
        self.first_hidden, self.first_cell = nn.Linear(features, width), nn.Linear(features, width)
        self.gate = nn.Linear(width, 1) if gate else None
        self.decoder = Recurrent(Recurrence(width, cell="lstm"), embedding + features)
        self.from_hidden = nn.Linear(width, embedding)
        self.from_context = nn.Linear(features, embedding, bias=False)
        self.output = nn.Linear(embedding, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor | None = None) -> Encoded:
        """Encode images: compute the memory that the decoder attends to, and the first state of the decoder.

        source: images (B, 3, H, W), or feature vectors (B, L, F) that were computed before.
        lengths: ignored, because all images of a batch have the same number L of feature vectors.
        """
        features_BLF = self.dropout(self.image_encoder.vectors(source))
        memory = self.remember(features_BLF)
        mean_BF = features_BLF.mean(1)
        first = torch.tanh(self.first_hidden(mean_BF)), torch.tanh(self.first_cell(mean_BF))
        locations = torch.full((len(source),), features_BLF.shape[1], device=source.device)
        return Encoded(locations, (memory,), first)

    def step(self, state: State, tokens: Tensor, encoded: Encoded) -> tuple[State, Tensor]:
        return self.decode(state, tokens, encoded)[:2]

    def first_step(self, batch: CaptionInputs) -> tuple[State, Tensor, Encoded]:  # type: ignore[override]
        """Return the arguments of step() with which it reads the captions of a batch.

        batch.image: images (B, 3, H, W), or feature vectors (B, L, F) that were computed before.
        batch.inputs: (B, T), the tokens of the captions, beginning with BOS. With K captions for each image,
            inputs and logits have B K rows, and row r is a caption of image r // K.
        """
        encoded = self.encode(batch.image)
        count, state = captions_per_image(batch.inputs, encoded), self.start(encoded)
        return state.repeat(count) if count > 1 else state, batch.inputs, encoded

    def logits_and_weights(self, batch: CaptionInputs) -> tuple[Tensor, Tensor]:
        """Return logits (B, T, V), as forward() does, and the attention weights (B, T, L), with gradients.

        doubly_stochastic_penalty() uses these weights. For select="none", each weight is 1 / L.

        batch: see first_step().
        """
        _, logits_BTV, weights = self.decode(*self.first_step(batch), Look(weights=True, gradient=True))
        return logits_BTV, torch.stack(weights, 1)

    def decode(
        self, state: State, tokens: Tensor, encoded: Encoded, look: Look | None = None
    ) -> tuple[State, Tensor, list[Any]]:
        """Read the next n tokens of R captions; see step().

        Return the state after these tokens, the logits (R, n, V), and a list of the attention weights (R, L)
        of each step. They are None if `look` is None.
        """
        (memory,) = encoded.memories
        embedded_RTM = self.dropout(self.target(at_least_one(tokens)))
        h, c = state.hidden
        hidden, contexts, weights = [], [], []
        for at, word_RM in enumerate(embedded_RTM.unbind(1), state.position):
            query_RD = torch.cat((h, word_RM), 1) if self.query == "word" else h
            context_RF, weights_RL = self.read_image(query_RD, memory, at, look)
            if self.gate is not None:
                context_RF = torch.sigmoid(self.gate(h)) * context_RF
            inputs_R1I = torch.cat((word_RM, context_RF), 1)[:, None]
            _, (h, c) = self.decoder.run(inputs_R1I, (h[:, None], c[:, None]))
            h, c = h[:, 0], c[:, 0]
            hidden.append(h)
            contexts.append(context_RF)
            weights.append(weights_RL)
        states_RTM, contexts_RTF = torch.stack(hidden, 1), torch.stack(contexts, 1)
        sum_RTM = embedded_RTM + self.from_hidden(states_RTM) + self.from_context(contexts_RTF)
        logits_RTV = self.output(self.dropout(sum_RTM))
        return State(state.position + tokens.shape[1], (h, c)), logits_RTV, weights


def doubly_stochastic_penalty(weights: Tensor, lengths: Tensor) -> Tensor:
    """Return sum_i (1 - sum_t alpha_ti)^2 of each caption, (B,) (Xu et al. 2015, section 4.2.1, eq. 14).

    The penalty is small if each location of the image gets a total weight of about 1 over the words of the
    caption. The caller multiplies it with lambda and adds it to the loss.

    weights: (B, T, L), from Captioner.logits_and_weights().
    lengths: (B,), number of tokens of each caption. The rows of `weights` after the last token are padding.

    In this example, the third row is padding. The total weights of the two locations are 1.5 and 0.5:

    >>> doubly_stochastic_penalty(torch.tensor([[[0.5, 0.5], [1.0, 0.0], [9.0, 9.0]]]), torch.tensor([2]))
    tensor([0.5000])
    """
    check_caption_weights(weights, lengths)
    counts_BT = torch.arange(weights.shape[1], device=weights.device) < lengths.to(weights.device)[:, None]
    total_BL = torch.where(counts_BT[..., None], weights, 0.0).sum(1)
    return (1 - total_BL).square().sum(-1)
