"""The hook for attention that does not use transformers' interface: a mode that intercepts calls of torch functions.

Two forms of attention are recognised. `scaled_dot_product_attention` receives everything as arguments. A plain softmax is
attention if it comes between two products (`matmul` or `einsum`): scores = f(q @ kᵀ) before it, weights @ v after it; f may
scale, add a position bias and mask. `nn.MultiheadAttention` uses one or the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from floatlens.attention.call import CROSS, Inputs
from floatlens.decode.network import current_pass

functional = torch.nn.functional
SDPA = functional.scaled_dot_product_attention
MHA = functional.multi_head_attention_forward
SOFTMAX = {torch.softmax, functional.softmax, torch.Tensor.softmax}
PRODUCTS = {
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm,
}  # fmt: skip
ADDED_PRODUCTS = {torch.baddbmm, torch.Tensor.baddbmm}
FAR = 1000.0  # a score this far below the highest of its row is masked: its weight is 0 in any dtype

# (inputs, base, part, finish) -> output (R, Q, H, D); the callee chooses layer and part
Compute = Callable[[Inputs, Callable[[], Any], str | None, Callable[[Inputs], Inputs]], Any]


class Product(NamedTuple):
    """A matrix product: left (..., Q, D) @ right (..., D, T). `axes[i]` is where axis i of that is in what was returned."""

    left: torch.Tensor
    right: torch.Tensor
    shape: torch.Size
    axes: Sequence[int]


# A softmax whose scores came from a product: scores, left and right factor. It is attention once its weights are multiplied
# with values.
SoftmaxCall = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class FunctionMode(TorchFunctionMode):
    """Passes every attention call to `compute`, which returns the output, changed or not."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        self.products: list[Product] = []
        self.softmax: SoftmaxCall | None = None
        self.part: str | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is SDPA:
            return self._sdpa(*args, **kwargs)
        if func in SOFTMAX:
            return self._soften(func, args, kwargs)
        if func in PRODUCTS or func in ADDED_PRODUCTS:
            return self._multiply(partial(func, *args, **kwargs), *operands(func, args, kwargs))
        if func is torch.einsum:
            return self._einsum(*args, **kwargs)
        if func is MHA:
            return self._multi_head(*args, **kwargs)
        if isinstance(func, FunctionType):
            return self._by_name(func, args, kwargs)
        return func(*args, **kwargs)

    def _by_name(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a Python function. The mode is off inside it, so attention functions are recognised by name instead."""
        functional.scaled_dot_product_attention = self._sdpa
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = SDPA

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Observe nn.MultiheadAttention. With `need_weights` it takes another path, so it is run a second time."""
        given = inspect.signature(MHA).bind(*args, **kwargs)
        given.apply_defaults()
        query, key = given.arguments["query"], given.arguments["key"]
        self.part = None if query is key else CROSS
        try:
            if not given.arguments["need_weights"]:
                return self._by_name(MHA, args, kwargs)
            output = MHA(*args, **kwargs)
            given.arguments |= {"need_weights": False, "training": False}
            if given.arguments["attn_mask"] is None:
                given.arguments["is_causal"] = False
            with torch.no_grad():
                self._by_name(MHA, given.args, given.kwargs)
            return output
        finally:
            self.part = None

    def _sdpa(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        def base() -> Any:
            output = SDPA(*args, **kwargs)
            return output.view(*shape, *output.shape[-2:]).transpose(1, 2), None

        inputs = sdpa_inputs(*args, **kwargs)
        shape = inputs.q_BHQD.shape[:2]
        output = self.compute(inputs, base, self.part, lambda used: used)[0].transpose(1, 2)
        return output if args[0].ndim == 4 else output.flatten(0, 1)

    def _einsum(self, equation: Any, *given: Any) -> torch.Tensor:
        """Treat a sum over one index of two tensors as the matrix product that it is."""
        form = product_form(equation, given)
        if form is None:
            return torch.einsum(equation, *given)
        if self.softmax is not None and not meets(self.softmax, form.left, form.right):  # weights on the right
            turned = Product(form.right.mT, form.left.mT, form.shape, [*form.axes[:-2], form.axes[-1], form.axes[-2]])
            form = turned if meets(self.softmax, turned.left, turned.right) else form
        back = sorted(range(len(form.axes)), key=lambda axis: form.axes[axis])
        multiplied = self._multiply(
            lambda: torch.einsum(equation, *given).permute(*form.axes), form.left, form.right, form.axes
        )
        return multiplied.permute(back)

    def _multiply(
        self, multiply: Callable[[], Any], left: torch.Tensor, right: torch.Tensor, axes: Sequence[int] = ()
    ) -> Any:
        softmax, self.softmax = self.softmax, None
        if softmax is None or not meets(softmax, left, right):
            output = multiply()
            if left.ndim >= 3 and right.ndim >= 3:
                self.products.append(Product(left, right, output.shape, axes or list(range(output.ndim))))
            else:
                self.softmax = softmax
            return output
        scores, q, k, v = (heads_of(x) for x in (*softmax, right))
        k = k.transpose(2, 3)
        hidden = scores < scores.amax(-1, keepdim=True) - FAR
        visible = ~hidden if bool(hidden.any()) else None
        eye = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device).expand(*scores.shape[:2], -1, -1)
        shape = torch.Size()

        def base() -> Any:
            nonlocal shape
            output = multiply()
            shape = output.shape
            return heads_of(output).transpose(1, 2), None

        def finish(used: Inputs) -> Inputs:
            """The inputs with the model's own queries and keys, and the scores passed to the softmax as a bias."""
            changed = used.q_BHQD.float() * (1.0 if used.scaling is None else used.scaling)
            if used.softcap is not None:
                changed = used.softcap * torch.tanh(changed / used.softcap)
            return replace(used, q_BHQD=q, k_BKTD=k, scaling=0.0, softcap=None, bias=changed)

        # Any scores equal their product with the identity matrix, so a change can treat them like queries and keys.
        scored = scores if visible is None else scores.masked_fill(hidden, 0.0)
        values = v.to(scores.dtype).expand(-1, scores.shape[1], -1, -1) if v.shape[1] == 1 else v.to(scores.dtype)
        inputs = Inputs(scored, eye, values, 1.0, visible, False)
        output = self.compute(inputs, base, self.part, finish)[0].transpose(1, 2)
        kind = right.dtype
        return output.to(kind).reshape(shape if len(shape) else (*left.shape[:-1], right.shape[-1]))

    def _soften(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        products, self.products = self.products, []
        if scores.ndim not in (3, 4) or dim not in (-1, scores.ndim - 1):
            self.products = products
            return output
        for left, right, shape, axes in products:
            ordered = scores.permute(*axes) if scores.ndim == len(axes) else scores
            fits = shape[-2:] == ordered.shape[-2:] and shape.numel() == ordered.numel() and axes[-1] == len(axes) - 1
            if fits and left.ndim in (3, 4) and right.ndim == left.ndim:
                self.softmax = ordered, left, right
                break
        return output

    def begin(self) -> None:
        """Start a forward pass: forget the state of the previous one."""
        self.products, self.softmax = [], None


def operands(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The two tensors that a product multiplies."""
    names = ("batch1", "batch2") if func in ADDED_PRODUCTS else ("input", "other", "mat2", "tensor2")
    given = list(args[1:3] if func in ADDED_PRODUCTS else args[:2])
    left, right = [*given, *(kwargs[name] for name in names if name in kwargs)]
    return left, right


def product_form(equation: Any, given: Sequence[Any]) -> Product | None:
    """The matrix product that an einsum computes: one index of each operand stays, one is summed; None if it is none.

    >>> form = product_form("bqhd,bkhd->bhqk", [torch.zeros(2, 3, 4, 5), torch.zeros(2, 6, 4, 5)])
    >>> form.left.shape, form.right.shape, form.axes
    (torch.Size([2, 4, 3, 5]), torch.Size([2, 4, 5, 6]), [0, 1, 2, 3])
    """
    operands = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation:
        return None
    names = equation.replace(" ", "").replace("->", ",").split(",")
    unnamed = "123456789"[: max(0, operands[0].ndim - len(names[0].replace("...", "")))]
    first, second, result = (name.replace("...", unnamed) for name in names)
    if result[-1:] not in second:  # the last dim of the result is a column: of scores, a key
        first, second, operands = second, first, operands[::-1]
    rows, columns = [i for i in result if i not in second], [i for i in result if i not in first]
    summed, shared = [i for i in first if i not in result], [i for i in result if i in first and i in second]
    orders = [*shared, *rows, *summed], [*shared, *summed, *columns]
    plain = all(sorted(name) == sorted(order) for name, order in zip((first, second), orders, strict=True))
    if not plain or not shared or [len(rows), len(columns), len(summed)] != [1, 1, 1]:
        return None
    if [len(first), len(second)] != [one.ndim for one in operands]:
        return None
    left, right = (
        one.permute(*map(name.index, order)) for one, name, order in zip(operands, (first, second), orders, strict=True)
    )
    shape = torch.Size((*left.shape[:-1], right.shape[-1]))
    return Product(left, right, shape, [result.index(i) for i in (*shared, *rows, *columns)])


def is_of_sequence(inputs: Inputs) -> bool:
    """Whether queries and keys are the positions of the pass, and not landmarks or latents."""
    forward = current_pass()
    if forward is None:
        return True
    T = forward.tokens_BT.shape[1]
    return inputs.q_BHQD.shape[2] == T - forward.start and inputs.k_BKTD.shape[2] >= T


def meets(softmax: SoftmaxCall, left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a product multiplies the softmax's weights with values."""
    shape = softmax[0].shape
    same = left.shape[-2:] == shape[-2:] and left.numel() == shape.numel() and right.ndim == left.ndim
    return same and right.shape[-2] == shape[-1]


def heads_of(x: torch.Tensor) -> torch.Tensor:
    """Reshape (B·H, ·, ·) to (B, H, ·, ·) with the B of the forward pass, or H = 1 if it is unknown; 4 dims are kept."""
    if x.ndim == 4:
        return x
    forward = current_pass()
    rows = x.shape[0] if forward is None or x.shape[0] % forward.tokens_BT.shape[0] else forward.tokens_BT.shape[0]
    return x.reshape(rows, -1, *x.shape[1:])


def sdpa_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Inputs:
    """The arguments of scaled_dot_product_attention as `Inputs`."""
    if query.ndim == 3:
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = heads_of(attn_mask) if attn_mask.shape[0] == query.shape[0] else attn_mask[:, None]
        query, key, value = heads_of(query), heads_of(key), heads_of(value)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*(1,) * (4 - attn_mask.ndim), *attn_mask.shape)
    if is_causal and key.shape[2] > query.shape[2]:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    return Inputs(query, key, value, scale, attn_mask, is_causal)
