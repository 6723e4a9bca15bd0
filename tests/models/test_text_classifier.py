from itertools import pairwise

import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.text_classifier import ClassificationHead, ClassifierConfig, TextClassifier


def config(**changes: object) -> ClassifierConfig:
    sizes = ClassifierConfig(vocab_size=30, context=16, width=8, depth=1, heads=2).as_dict()
    return ClassifierConfig(**{**sizes, "outputs": 3, "pool": "cls", "ngram_features": 2, "buckets": 1009, **changes})


def randomized(head: ClassificationHead) -> ClassificationHead:
    generator = torch.Generator().manual_seed(3)
    for parameter in head.parameters():
        parameter.data.normal_(generator=generator)
    return head.double().eval()


def test_a_fresh_model_gives_every_class_the_same_probability() -> None:
    model = TextClassifier(config()).eval()
    logits = model(Batch({"text": Stream(ids=torch.randint(30, (2, 7)))}))
    assert torch.equal(logits, torch.zeros(2, 3))


def test_the_readout_without_a_bag_is_the_formula() -> None:
    head = randomized(ClassificationHead(config(ngram_features=0)))
    X = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    real = torch.tensor([[False, True, True, True, False]])
    kept = X[0, 1:4]
    pooled = torch.cat([kept[0], kept.mean(0), kept.max(0).values])
    expected = head.pooled.weight @ pooled + head.pooled.bias
    got = head(X, Stream(ids=torch.arange(5)[None], real=real))[0]
    assert torch.allclose(got, expected, atol=1e-12)


def test_the_bag_has_one_row_for_each_n_gram_and_none_for_the_class_token() -> None:
    """Two texts share a row if and only if they share an n-gram; sums are divided by the root of the number."""
    head = randomized(ClassificationHead(config(buckets=1 << 20)))
    assert head.bag is not None

    def bag(*ids: int) -> torch.Tensor:
        assert head.bag is not None
        return head._bag(head.bag, Stream(ids=torch.tensor([[29, *ids]])))[0]

    def single(a: int) -> torch.Tensor:
        return bag(a)

    def double(a: int, b: int) -> torch.Tensor:
        return bag(a, b) * 3**0.5 - single(a) - single(b)

    text = (4, 7, 4, 9)
    expected = torch.stack([*map(single, text), *(double(a, b) for a, b in pairwise(text))]).sum(0)
    assert torch.allclose(bag(*text), expected / 7**0.5, atol=1e-12)
    assert not torch.allclose(double(4, 7), double(7, 4))
    assert torch.equal(bag(), torch.zeros(3, dtype=torch.float64))


def test_padding_on_either_side_changes_nothing() -> None:
    model = TextClassifier(config()).double().eval()
    randomized(model.head)
    ids = torch.randint(29, (3, 6), generator=torch.Generator().manual_seed(2))
    plain = model(Batch({"text": Stream(ids=ids)}))
    junk = torch.randint(30, (3, 4), generator=torch.Generator().manual_seed(4))
    sides = {"left": (junk, ids), "right": (ids, junk)}
    for side, parts in sides.items():
        real = torch.cat([torch.full_like(part, part is ids, dtype=torch.bool) for part in parts], dim=1)
        padded = model(Batch({"text": Stream(ids=torch.cat(parts, dim=1), real=real)}))
        assert torch.allclose(plain, padded, atol=1e-12), side
