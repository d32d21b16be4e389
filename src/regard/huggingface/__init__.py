"""Hugging Face models: record, draw, change and test the attention of a model of the library transformers.

    regard.huggingface.register()
    model = AutoModel.from_pretrained(FOLDER, attn_implementation="regard")
    with regard.record(regard.Look(weights=True)) as seen:
        model(**inputs)

To read the code, start with attention_function.py. This package imports transformers only when it is used.
"""

from regard.huggingface.local_model import TextModel, load_model
from regard.huggingface.registration import NAME, attach, register, unregister, unsupported_layers
from regard.huggingface.text_attention import ObservedText, observe_text
from regard.huggingface.token_erasure import ErasureReport, TokenErasure, erase_token, erase_tokens

__all__ = [
    "ErasureReport",
    "NAME",
    "ObservedText",
    "TextModel",
    "TokenErasure",
    "attach",
    "erase_token",
    "erase_tokens",
    "load_model",
    "observe_text",
    "register",
    "unregister",
    "unsupported_layers",
]
