"""The model as a function of token ids."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import floatlens as fl
from floatlens.decode.network import Passes


class Products(TorchDispatchMode):
    """Collects the shapes of the right sides of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.shapes.append(tuple(args[1].shape))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_of_the_last_rows_are_one_product_with_the_vocabulary(count, dtype):
    lens = fl.load("tiny-dream", dtype=dtype)
    lens.model.requires_grad_(False)  # as of quantized and adapted models; torch decides by this too
    ids_BT = torch.randint(100, 200, (count, 12), generator=torch.Generator().manual_seed(0))
    passes = Passes(lens.model, lens.family, ids_BT, None, lens.settings(), special=lens.special_tokens)
    with Products() as products:
        logits_BKV = passes.logits(ids_BT, None, 4)
    head = lens.model.get_output_embeddings()
    vocabulary = [shape for shape in products.shapes if head.out_features in shape]
    assert vocabulary == [(head.in_features, head.out_features)]
    assert not head._forward_pre_hooks
    with torch.no_grad():
        expected = lens.model(ids_BT).logits[:, -4:]
    torch.testing.assert_close(logits_BKV, expected, rtol=1e-5 if dtype == "float32" else 2e-2, atol=1e-5)
