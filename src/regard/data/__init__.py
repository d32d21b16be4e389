"""Data: read, check, encode and batch sentence pairs, text for language models, and labelled texts.

    pairs = read_pairs("train.ko", "train.en")                 # or tsv=..., jsonl=..., plain or gzip
    print(pairs.inspect())                                     # a table of the problems found
    train, valid = hold_out(pairs, count=1000)
    source, target = train_tokenizers(train, "unigram")
    encoded = encode_pairs(train, source, target, "cache")     # encoded once, then mapped from disk
    for batch in Batches(encoded, tokens=4096).epoch(0): ...

Text, for language models:

    text = encode_text("train.txt", tokenizer, layout="continuous")  # "documents": each line is a text
    for batch in StreamBatches(text, window=35, streams=20).epoch(0): ...

Labelled texts, for classifiers:

    texts = read_labelled("train.tsv", label="label", text="sentence")     # label, text: column names
    encoded = encode_texts(texts, texts.label_set(), train_tokenizer("word", texts.texts))
    for batch in LabelledBatches(encoded, tokens=4096).epoch(0): ...

Images with captions are in two packages: regard.data.images reads image files and caption files, and
regard.data.shapes generates pictures with captions.

korean_english() generates Korean-English pairs, without a file. fetch.fetch() downloads public datasets;
nothing else in the package uses the network.
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.data.batch import LabelledBatch, TextBatch
    from regard.data.batching import (
        Batches,
        EncodedPairs,
        EncodedTexts,
        LabelledBatches,
        encode_pairs,
        encode_texts,
    )
    from regard.data.data_report import Report
    from regard.data.encoded_text import (
        DocumentBatches,
        EncodedText,
        SlidingWindows,
        StreamBatches,
        TextCounts,
        WindowBatches,
        count_text,
        encode_text,
    )
    from regard.data.korean import KoreanEnglish, korean_english
    from regard.data.labelled_text import (
        ClassBalance,
        LabelledText,
        LabelledTexts,
        Labels,
        class_weights,
        labelled_from_lists,
        read_labelled,
    )
    from regard.data.pairs import Pair, Pairs, hold_out, pairs_from_dataset, pairs_from_lists, read_pairs
    from regard.data.read_text import Choices
    from regard.data.tape_tasks import algorithm_batch
    from regard.data.tokenizers import (
        TOKENIZERS,
        Tokenizer,
        load_tokenizer,
        suggest_tokenizer,
        train_tokenizer,
        train_tokenizers,
    )
else:
    import_lazily(__name__)

__all__ = [
    "TOKENIZERS",
    "Batches",
    "Choices",
    "ClassBalance",
    "DocumentBatches",
    "EncodedPairs",
    "EncodedText",
    "EncodedTexts",
    "KoreanEnglish",
    "LabelledBatch",
    "LabelledBatches",
    "LabelledText",
    "LabelledTexts",
    "Labels",
    "Pair",
    "Pairs",
    "Report",
    "SlidingWindows",
    "StreamBatches",
    "TextBatch",
    "TextCounts",
    "Tokenizer",
    "WindowBatches",
    "algorithm_batch",
    "class_weights",
    "count_text",
    "encode_pairs",
    "encode_text",
    "encode_texts",
    "hold_out",
    "korean_english",
    "labelled_from_lists",
    "load_tokenizer",
    "pairs_from_dataset",
    "pairs_from_lists",
    "read_labelled",
    "read_pairs",
    "suggest_tokenizer",
    "train_tokenizer",
    "train_tokenizers",
]
