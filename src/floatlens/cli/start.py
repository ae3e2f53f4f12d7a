"""What eval, stress and ablate do around their work: refuse what cannot work or did not, open the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    import pandas as pd

    from floatlens.evaluation.evaluate import Asking
    from floatlens.evaluation.plan import Plan
    from floatlens.runs.folder import RunFolder


def check_settings(plan: Plan, asking: Asking | None = None) -> None:
    """Refuse settings that cannot work for one of the models before any weight is read."""
    from floatlens.decode.registry import settings_for
    from floatlens.models.checkpoint import find

    for model in plan.models:
        settings_for(find(model).family.sampler, **(asking or plan.asking).generation())


def check_retriever(retriever: str | None, corpus: str | None) -> None:
    if retriever not in (None, "bm25"):
        raise FloatLensError(f"retriever {retriever!r} is not known; use bm25")
    if (retriever is None) != (corpus is None):
        raise FloatLensError("a retriever needs a corpus and a corpus a retriever: --retriever bm25 --corpus FILE")


def check_answered(answers: pd.DataFrame) -> None:
    """Refuse to go on when not one question could be answered."""
    if answers["error"].notna().all():
        raise FloatLensError(f"no question could be answered; the first failed because: {answers['error'].iloc[0]}")


@contextmanager
def started(
    out: str | None, command: str, plan: Plan, also: dict[str, Any], resume: bool
) -> Iterator[RunFolder | None]:
    """The run folder, if one was asked for, held until the block ends."""
    if out is None:
        yield None
        return
    from floatlens.models.checkpoint import find
    from floatlens.runs import manifest
    from floatlens.runs.folder import RunFolder

    about = manifest.describe(
        command,
        {**plan.recorded(), **also},
        checkpoints=[find(model) for model in plan.models],
        data=[*plan.data, *([plan.corpus] if plan.corpus else [])],
        template=plan.asking.template.text,
        seeds={"seed": plan.asking.seed, "draw": plan.seed},
    )
    with RunFolder.create(out, about, resume=resume) as folder:
        yield folder
