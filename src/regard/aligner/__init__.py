"""Statistical word alignment: learns which words translate each other from sentence pairs alone.

No pretrained model and no training run is needed. In the order in which the ideas build on each other:

    vocabulary   the words of one side: forms, and their prefixes, for rare words
    lexicon      the table of translation probabilities: counts, back-off to prefixes, similar strings
    ibm1         IBM model 1: each target word comes from any source word
    hmm          the HMM alignment model: neighbouring target words come from neighbouring source words
    fertility    how many target words a source word has
    agreement    both directions at once: expected counts are the product of their posteriors
    aligner      the EM algorithm, for one batch of pairs or for a stream; the aligner as a file
    aligned_pair the result: probabilities of both directions, and links
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.aligner.aligned_pair import AlignedPair
    from regard.aligner.aligner import Aligner, align
    from regard.aligner.hmm import hmm_posteriors
    from regard.aligner.ibm1 import ibm1_posteriors
else:
    import_lazily(__name__)

__all__ = ["AlignedPair", "Aligner", "align", "hmm_posteriors", "ibm1_posteriors"]
