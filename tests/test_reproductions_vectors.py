"""Word vectors against gensim on the same words, vocabulary, window, width, negatives and passes: minutes each."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "word_vectors.py"


@pytest.mark.parametrize("model", ["skip-gram", "cbow"])
@pytest.mark.parametrize(("data", "words"), [("shakespeare", "text"), ("python-source", "code")])
def test_vectors_agree_with_a_held_out_text_as_well_as_gensims(data: str, words: str, model: str) -> None:
    pytest.importorskip("gensim")
    found = runpy.run_path(str(BENCHMARK))["compare"](data, model, words)
    print(f"{data} {model}: {found.tokenloom.agreement:.4f}, gensim {found.gensim.agreement:.4f}, ×{found.ratio:.2f}")
    assert found.pairs > 10_000
    assert found.tokenloom.agreement >= found.gensim.agreement
