"""BLEU and chrF, by sacrebleu where it is installed."""

from __future__ import annotations

from collections.abc import Sequence

MISSING = "not measured; pip install 'tokenloom[bleu]' brings sacrebleu"


def corpus_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU (Papineni et al. 2002) and chrF2 (Popović 2015) of translations, from 0 to 100, as sacrebleu's own defaults
    have them; nothing where it is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        return {}
    one = [list(references)]
    # What it says of texts that look tokenized is about other people's data.
    return {
        "bleu": float(BLEU(force=True).corpus_score(list(texts), one).score),
        "chrf": float(CHRF().corpus_score(list(texts), one).score),
    }
