"""Low-rank adapters: what they count, that they start from nothing, merge, and come apart again."""

import pytest
import torch
from torch import nn

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.nn.lora import LoRALinear, apply_lora
from tokenloom.nn.modules import count_parameters


def test_the_chapters_model_gets_2048_numbers() -> None:
    model = GPT(GPTConfig(65, 64, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=12)
    batch = Batch({"text": Stream(ids=torch.arange(40).view(2, 20))})
    with torch.no_grad():
        before = model(batch)
    adapters = apply_lora(model, rank=4, generator=torch.Generator().manual_seed(1))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert (len(adapters), sum(p.numel() for p in trained)) == (4, 2048)
    assert count_parameters(model) == 112_065 + 2048
    with torch.no_grad():
        assert torch.equal(model(batch), before), "at B = 0 the model is what it was"
    for adapter in adapters:
        nn.init.normal_(adapter.B, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        apart = model(batch)
        assert (apart - before).abs().max() > 0.1
        weights = [adapter.base.weight.clone() for adapter in adapters]
        for adapter in adapters:
            adapter.merge()
            adapter.merge()
        assert (model(batch) - apart).abs().max() < 1e-5
        for adapter in adapters:
            adapter.unmerge()
        assert all(torch.equal(adapter.base.weight, w) for adapter, w in zip(adapters, weights, strict=True))
        assert torch.equal(model(batch), apart)
    model(batch).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_the_formula_worked_by_hand() -> None:
    base = nn.Linear(2, 2)
    adapter = LoRALinear(base, 1)
    with torch.no_grad():
        base.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T)
        base.bias.copy_(torch.tensor([0.5, -0.5]))
        adapter.A.copy_(torch.tensor([[1.0], [2.0]]))
        adapter.B.copy_(torch.tensor([[10.0, 20.0]]))
    # (1, 1) W₀ = (4, 6); (1, 1) A = 3, and 3 B = (30, 60); and the bias.
    assert adapter(torch.ones(2)).tolist() == [34.5, 65.5]
    assert adapter.weight.T.tolist() == [[11.0, 22.0], [23.0, 44.0]]


def test_what_cannot_be_adapted() -> None:
    with pytest.raises(ValueError, match="from 1 to 3"):
        LoRALinear(nn.Linear(3, 5), 4)
    with pytest.raises(ValueError, match="no linear map of the model is called W_x"):
        apply_lora(nn.Sequential(nn.Linear(2, 2)), 1, ("W_x",))
