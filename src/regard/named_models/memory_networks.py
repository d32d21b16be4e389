"""All memory networks by name, and build_memory_network(), which builds one of them.

To add a network: write its file, and add one line to MEMORY_NETWORKS.
"""

from __future__ import annotations

from typing import Any

from regard.errors import UnknownName
from regard.models.memory_network import MemoryNetwork
from regard.models.supervised_memory_network import SupervisedMemoryNetwork
from regard.options.attention_options import check_options, model_arguments

__all__ = ["MEMORY_NETWORKS", "StoryModel", "build_memory_network"]

StoryModel = MemoryNetwork | SupervisedMemoryNetwork

MEMORY_NETWORKS: dict[str, type[MemoryNetwork] | type[SupervisedMemoryNetwork]] = {
    "end-to-end": MemoryNetwork,
    "supervised": SupervisedMemoryNetwork,
}


def build_memory_network(
    name: str, vocabulary_size: int, answers: int, sentences: int, **options: Any
) -> StoryModel:
    """Build a memory network from its name and plain options, for example from a configuration file.

    name: a name in MEMORY_NETWORKS.
    vocabulary_size: number of words, including padding and the unknown word.
    answers: number of answers.
    sentences: maximum number of sentences of a story.
    options: further arguments of the class, such as width and hops.

    >>> build_memory_network("end-to-end", 9, 3, 10, hops=2).sites
    ('hop.0', 'hop.1')
    """
    if name not in MEMORY_NETWORKS:
        raise UnknownName("memory network", name, MEMORY_NETWORKS)
    kind = MEMORY_NETWORKS[name]
    known = model_arguments(kind, 3)
    check_options(f"build_memory_network({name!r})", name, options, known)
    return kind(vocabulary_size, answers, sentences, **options)
