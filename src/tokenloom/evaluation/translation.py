"""BLEU and chrF by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence

MISSING = "BLEU and chrF are not measured; pip install 'tokenloom[bleu]' brings sacrebleu"


def corpus_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return BLEU (Papineni et al. 2002) and chrF2 (Popović 2015), 0 to 100; empty without sacrebleu."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        return {}
    one = [list(references)]
    # force: no warning about texts that look tokenized.
    return {
        "bleu": float(BLEU(force=True).corpus_score(list(texts), one).score),
        "chrf": float(CHRF().corpus_score(list(texts), one).score),
    }
