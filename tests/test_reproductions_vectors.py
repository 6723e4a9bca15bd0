"""Word vectors against gensim on the same words, vocabulary, window, dimension, negatives and epochs: minutes each."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "word_vectors.py"


@pytest.mark.parametrize("model", ["skip-gram", "cbow"])
@pytest.mark.parametrize(("data", "words"), [("shakespeare", "text"), ("python-source", "code")])
def test_spearman_pmi_is_at_least_that_of_gensim(data: str, words: str, model: str) -> None:
    pytest.importorskip("gensim")
    found = runpy.run_path(str(BENCHMARK))["compare"](data, model, words)
    ours, theirs = found.tokenloom.spearman_pmi, found.gensim.spearman_pmi
    print(f"{data} {model}: {ours:.4f}, gensim {theirs:.4f}, ×{found.ratio:.2f}")
    assert found.pairs > 10_000
    assert ours >= theirs
