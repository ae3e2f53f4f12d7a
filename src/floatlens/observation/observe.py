"""Observe any torch model that calls scaled_dot_product_attention: `with observe(model) as session`.

Layers are numbered by the order of their calls within a forward pass of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from floatlens.observation.mixers import mixers_observed
from floatlens.observation.session import Session

WITHOUT_REGIONS = ("received", "entropy", "qk", "qk_norm", "qk_cos", "value_norm")
SDPA = torch.nn.functional.scaled_dot_product_attention


class _FunctionMode(TorchFunctionMode):
    """Sees scaled_dot_product_attention, also where it is called inside another torch function."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is SDPA:
            return self._attend(*args, **kwargs)
        if not isinstance(func, FunctionType):
            return func(*args, **kwargs)
        # The mode is off while it handles a call, so attention inside a Python function such as
        # multi_head_attention_forward would not be observed: it is caught by its name instead.
        functional = torch.nn.functional
        functional.scaled_dot_product_attention = self._attend
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = SDPA

    def _attend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = SDPA(*args, **kwargs)
        self._show(*args, **kwargs)
        return output

    def _show(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if query.ndim == 3:
            query, key, value = query[:, None], key[:, None], value[:, None]
            attn_mask = attn_mask[:, None] if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*(1,) * (4 - attn_mask.ndim), *attn_mask.shape)
        layer = self.session.calls
        self.session.calls += 1
        self.session.see(layer, query, key, value, scaling=scale, mask=attn_mask, causal=is_causal)


@contextmanager
def observe(model: torch.nn.Module, statistics: Sequence[str] = WITHOUT_REGIONS, **options: Any) -> Iterator[Session]:
    """Observe any torch model; `results[name][layer]` of the last forward pass are in the session.

    >>> attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.ones(1, 4, 8)
    >>> with observe(attention, ["received"]) as session:
    ...     _ = attention(x, x, x, need_weights=False)
    >>> session.results["received"][0].shape
    torch.Size([1, 2, 4])
    """
    # A model of any making may write over its queries and keys after the call, so no call waits.
    session = Session(statistics, **{"room": 0, **options})
    hook = model.register_forward_pre_hook(lambda *_: session.begin())
    try:
        with _FunctionMode(session), mixers_observed(model, session):
            yield session
    finally:
        hook.remove()
