"""Hugging Face models: record, draw, change and test the attention of a model of the library transformers.

    regard.huggingface.register()
    model = AutoModel.from_pretrained(FOLDER, attn_implementation="regard")
    with regard.record(regard.Look(weights=True)) as seen:
        model(**inputs)

To read the code, start with attention_function.py. This package imports transformers only when it is used.
"""

from regard.huggingface.registration import NAME, attach, register, unregister
from regard.huggingface.unsupported import unsupported_layers

__all__ = ["NAME", "attach", "register", "unregister", "unsupported_layers"]
