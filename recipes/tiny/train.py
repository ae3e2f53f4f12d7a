"""The training loop of all four bundled models.

The data and masks of a step depend only on the seed and the step's number, so an interrupted run continues
exactly as if it had not been interrupted. Checkpoints are safetensors and JSON.
"""

import csv
import json
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from floatlens.errors import FloatLensError
from recipes.tiny import curriculum, objectives, ssm
from recipes.tiny.curriculum import PROBES, STAGES, Maker, Row
from recipes.tiny.model import adapt, embedding, hidden, start

KINDS = ("arm", "mdm", "dream", "ssm")
TOKENS = 4096  # per step; with 1,500 the MDM never left the first stage
WARM_UP = 200
CONSTANT = 0.55  # share of the steps before the cosine begins
TRUE = {"mdm": 0.75, "dream": 0.9, "ssm": 0.75}  # share of the steps after which the true objective, 1/t, is used
# Dream's sampler commits the last two positions at once (LOG.md), so the model must complete answers from their start
MASKS = {
    "mdm": {"blank": 0.6, "begun": 0.0},
    "dream": {"blank": 0.1, "begun": 0.6},
    "ssm": {"blank": 0.6, "begun": 0.0},
}
CHECK = 20  # steps between measurements of the stage's own accuracy
PROBE = 200  # steps between measurements of all probes
SAVE = 100


@dataclass
class State:
    """The state of a run, except its tensors."""

    kind: str
    seed: int
    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    tokens: int = 0
    began: int = 0  # step and second at which the schedule started; not 0 in a run that continues another
    clock: float = 0.0
    cooling: int = -1  # step at which the cool-down of a run with `cool` began


def rate(done: float, step: int, stage: int, peak: float) -> float:
    """The learning rate: warm-up, constant, cosine to 3 %. Above 1e-3 models copied from the wrong subject.

    >>> rate(0.3, 1000, 0, 1e-3), round(rate(1.0, 1000, 0, 1e-3), 6)
    (0.001, 3e-05)
    """
    fall = 0.0 if done < CONSTANT else min(1.0, (done - CONSTANT) / (1 - CONSTANT))
    return peak * min(1.0, (step + 1) / WARM_UP) * (0.03 + 0.97 * (1 + math.cos(math.pi * fall)) / 2)


def plan(kind: str, make: Callable[[], Row], draw: random.Random, done: float, tokens: int) -> objectives.Plan:
    """The data of one step."""
    room = 0 if kind == "arm" else draw.choice((2, 4, 6, 6, 10, 14, 28))
    ids_BT, roles_BT = curriculum.batch(make, tokens, room)
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    if kind == "arm":
        return objectives.causal(ids_BT, roles_BT, generator)
    return objectives.masked(ids_BT, roles_BT, generator, true=done > TRUE[kind], shift=kind == "dream", **MASKS[kind])


def loss_of(states: Callable[[Tensor], Tensor], embedding_VD: Tensor, step: objectives.Plan) -> Tensor:
    logits_NV = F.linear(states(step.ids_BT)[step.speak_BT], embedding_VD)
    return (F.cross_entropy(logits_NV, step.target_N, reduction="none") * step.weight_N).sum()


def states_of(model: nn.Module, kind: str, ids_BT: Tensor) -> Tensor:
    """The last hidden states (B, T, D)."""
    return ssm.hidden(model, ids_BT) if kind == "ssm" else hidden(model, ids_BT, causal=kind == "arm")


def progress_of(state: State, steps: int, minutes: float | None, cool: int | None) -> float:
    """Share of the schedule that is done: by steps, by time, or, with `cool`, by the steps since a STOP file appeared.

    >>> progress_of(State("ssm", 0, step=900), steps=1000, minutes=None, cool=200)
    0.55
    >>> progress_of(State("ssm", 0, step=900, cooling=800), steps=1000, minutes=None, cool=200)
    0.775
    """
    done = (state.seconds - state.clock) / (60 * minutes) if minutes else (state.step - state.began) / steps
    if cool is None:
        return done
    if state.cooling < 0:
        return min(done, CONSTANT)
    return CONSTANT + (1 - CONSTANT) * (state.step - state.cooling) / cool


@torch.no_grad()
def accuracy(model: nn.Module, kind: str, make: Maker, tokens: int) -> float:
    """Share of answer tokens that are correct, on validation entities, with the same questions every time."""
    draw = random.Random("probe")
    ids_BT, roles_BT = curriculum.batch(make(draw, "validation"), tokens, 0 if kind == "arm" else 4)
    asked = objectives.probe(kind, ids_BT, roles_BT)
    states = states_of(model, kind, asked.ids_BT)[asked.speak_BT]
    right_N = F.linear(states, embedding(model)).argmax(-1) == asked.target_N
    return (right_N * asked.weight_N).sum().item() / asked.weight_N.sum().item()


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write a checkpoint; the JSON last, so that a partial checkpoint is not mistaken for a complete one."""
    tensors = {f"model.{name}": weight.detach() for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        for key, value in optimizer.state[weight].items():
            tensors[f"optimizer.{name}.{key}"] = value
    save_file(tensors, folder / "checkpoint.safetensors.part")
    (folder / "checkpoint.safetensors.part").replace(folder / "checkpoint.safetensors")
    (folder / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n")


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Read a checkpoint into model and optimizer."""
    tensors = load_file(folder / "checkpoint.safetensors")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[f"model.{name}"])
            prefix = f"optimizer.{name}."
            optimizer.state[weight] = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    return State(**json.loads((folder / "state.json").read_text()))


def restore_published(folder: Path, model: nn.Module) -> State:
    """Read the weights of a published model (as written by `layouts.write` or `card.measure`); it has no optimizer state."""
    tensors = load_file(folder / "model.safetensors")
    names = {name for name, _ in model.named_parameters()}
    if set(tensors) != names:
        raise FloatLensError(
            f"{folder}/model.safetensors has other names than the trained network; pass a run with --after"
        )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[name])
    found = json.loads((folder / "scores.json").read_text())
    made = found["training"]
    state = State(kind_of(folder) or "", made["seed"], made["step"], len(STAGES) - 1)
    state.seconds, state.tokens = 60 * made["minutes"], made["tokens"]
    return state


def kind_of(folder: Path) -> str | None:
    """The kind of model in a run folder or a published model's folder; None for other folders."""
    if (folder / "state.json").exists():
        return json.loads((folder / "state.json").read_text())["kind"]
    if (folder / "scores.json").exists():
        return json.loads((folder / "scores.json").read_text())["model"].removeprefix("tiny-")
    return None


def weights(folder: Path) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, by native names."""
    tensors = load_file(folder / "checkpoint.safetensors")
    return {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}


def train(
    kind: str,
    out: Path,
    *,
    steps: int = 8000,
    minutes: float | None = None,
    seed: int = 0,
    peak: float = 1e-3,
    tokens: int = TOKENS,
    resume: bool = False,
    arm: Path | None = None,
    after: Path | None = None,
    mix: str = "all",
    without: tuple[str, ...] = (),
    decay: float = 0.05,
    compiled: bool = False,
    cool: int | None = None,
    progress: bool = True,
) -> State:
    """Train one model into the folder `out`; `dream` starts from the run folder `arm`.

    `after` continues another run of the same kind with a new schedule: warm-up and cosine start again, while the numbering
    of steps, tokens and curves continues. It may also be the folder of a published model, without optimizer state. `mix`
    is the data of the last stage (a name of `curriculum.MIXES`), `without` leaves parts of it out, `decay` is the weight
    decay. With `minutes` the schedule follows the time instead of `steps`, and a run cannot be repeated bit by bit. With
    `cool` the rate stays constant until a file STOP appears in `out`; then that many more steps are trained.
    """
    if kind not in KINDS:
        raise FloatLensError(f"there is no model {kind!r} to train; choose one of {', '.join(KINDS)}")
    if mix not in curriculum.MIXES:
        raise FloatLensError(f"there is no mix {mix!r} to train on; choose one of {', '.join(curriculum.MIXES)}")
    parts = curriculum.MIXES[mix]
    unknown = [name for name in without if name not in parts]
    if unknown:
        raise FloatLensError(f"the mix has no part {unknown[0]!r} to leave out; it has {', '.join(parts)}")
    if resume and not (out / "state.json").exists():
        raise FloatLensError(f"{out} has no checkpoint to resume; leave out --resume to start a new run")
    if not resume and (out / "state.json").exists():
        raise FloatLensError(f"{out} already has a run; use --resume to continue it, or another --out")
    if after and not resume and kind_of(after) != kind:
        raise FloatLensError(f"{after} has no run of {kind} to continue; pass the folder of one with --after")
    out.mkdir(parents=True, exist_ok=True)
    model: nn.Module = ssm.start(seed) if kind == "ssm" else start(seed)
    if kind == "dream" and not (after or resume):
        if arm is None or not (arm / "state.json").exists():
            raise FloatLensError(f"dream is adapted from a trained arm, but {arm} has no run; pass --arm RUN")
        model.load_state_dict(weights(arm), strict=False)
    if kind == "dream":
        model = adapt(model)
    parts_of = [{"params": list(model.parameters())}]
    if (
        kind == "ssm"
    ):  # weight decay of matrices only: memory and step size are logarithms, for which zero is not neutral
        parts_of = [{"params": [p for p in model.parameters() if p.dim() > 1]}]
        parts_of += [{"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(parts_of, lr=peak, betas=(0.9, 0.98), weight_decay=decay)
    state = State(kind, seed, stage=len(STAGES) - 1 if kind == "dream" else 0)
    if after and not resume:
        state = restore(after, model, optimizer) if (after / "state.json").exists() else restore_published(after, model)
        state.began, state.clock = state.step, state.seconds
        if (after / "curves.csv").exists():
            shutil.copy(after / "curves.csv", out / "curves.csv")
    if resume:
        state = restore(out, model, optimizer)
        lines = (out / "curves.csv").read_text().splitlines()
        kept = [lines[0], *(line for line in lines[1:] if int(line.split(",")[0]) <= state.step)]
        (out / "curves.csv").write_text("\n".join(kept) + "\n")

    def states(ids_BT: Tensor) -> Tensor:
        return states_of(model, kind, ids_BT)

    if compiled:
        states = torch.compile(states, dynamic=True)
    console = Console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not (progress and console.is_terminal),
    )
    began = time.monotonic() - state.seconds
    begun = (out / "curves.csv").exists() and (resume or after is not None)
    with bar, (out / "curves.csv").open("a" if begun else "w", newline="") as file:
        curves = csv.writer(file)
        if not begun:
            curves.writerow(["step", "seconds", "tokens", "stage", "rate", "loss", "accuracy", *PROBES])
        task = bar.add_task(f"tiny-{kind}", total=1.0, said="")
        recent: list[float] = []
        while True:
            here = state.step - state.began
            if cool is not None and state.cooling < 0 and (out / "STOP").exists():
                state.cooling = state.step
            done = progress_of(state, steps, minutes, cool)
            if done >= 1:
                break
            draw = random.Random(f"{seed} {state.step}")
            lr = rate(done, here, state.stage, peak)
            for group in optimizer.param_groups:
                group["lr"] = lr
            make = curriculum.choose(state.stage, draw, without, mix)(draw, "train")
            data = plan(kind, make, draw, done, tokens)
            loss = loss_of(states, embedding(model), data)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            state.tokens += data.ids_BT.numel()
            state.seconds = time.monotonic() - began
            recent.append(loss.item())
            bar.update(
                task,
                completed=done,
                said=f"loss {recent[-1]:.3f}  {state.tokens / state.seconds:,.0f} tokens/s  {STAGES[state.stage].name}",
            )
            if state.step % CHECK == 0:
                now = accuracy(model, kind, STAGES[state.stage].make, tokens)
                probes = [""] * len(PROBES)
                if state.step % PROBE == 0 and state.stage > 6:
                    probes = [f"{accuracy(model, kind, make, tokens):.3f}" for make in PROBES.values()]
                mean = sum(recent) / len(recent)
                recent = []
                numbers = [state.step, round(state.seconds), state.tokens, state.stage]
                curves.writerow([*numbers, f"{lr:.2e}", f"{mean:.4f}", f"{now:.3f}", *probes])
                file.flush()
                if now >= STAGES[state.stage].goal:
                    state.stage += 1
                if state.step % SAVE == 0:
                    save(out, model, optimizer, state)
        save(out, model, optimizer, state)
    return state
