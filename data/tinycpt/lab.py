"""The experiment of `tinycpt`: recipe, units of work, the ledger of losses, and doing a unit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import corpus
import torch
from train import DEVICE, GPT, Run, Size, Stream, held_out, losses, save

SAVED = 10_000  # pre-training steps between two checkpoints


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a measured loss, besides the text."""

    sizes: dict[str, Size]
    target: str = "french"
    stages: tuple[int, ...] = (15, 31, 62, 124, 279)  # PTPP
    replays: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    atpps: tuple[float, ...] = (0.5, 1, 2, 4, 8, 12, 16, 20)
    context: int = 64
    batch: int = 8  # windows a step
    windows: int = 768  # held-out windows a language
    warmup: tuple[float, float] = (
        1.0,
        0.25,
    )  # pre-training, adaptation; bytes a parameter
    decay: float = 0.15  # share of a budget over which the rate falls to 0

    @property
    def domains(self) -> tuple[str, str]:
        """Source and target."""
        return corpus.SOURCE, self.target

    def params(self, size: str) -> int:
        """Count of all weights, tied embedding and positions included."""
        return sum(p.numel() for p in GPT(self.sizes[size], self.context).parameters())

    def steps(self, size: str, per_parameter: float) -> int:
        """Count the steps that see this many bytes a parameter."""
        return round(per_parameter * self.params(size) / (self.batch * self.context))

    def rate(self, size: str, phase: int) -> Callable[[int], float]:
        """Constant learning rate after a linear warm-up, as a function of the step."""
        peak, warm = self.sizes[size].rate, self.steps(size, self.warmup[phase]) + 1
        return lambda step: peak * min(1.0, (step + 1) / warm)

    def units(self) -> list[Unit]:
        """All work in order: small before large, bases before runs."""
        return [
            Unit(size, seed, ptpp, replay)
            for size, shape in self.sizes.items()
            for of_bases in (True, False)
            for seed in shape.seeds
            for ptpp in (self.stages if of_bases else reversed(self.stages))
            for replay in ((None,) if of_bases else self.replays)
        ]

    def evaluations(self, unit: Unit) -> list[tuple[str, str]]:
        """(atpp, annealed) that a unit measures."""
        if unit.replay is None:
            return [("0", "True")]
        return [
            (f"{a:g}", str(annealed)) for a in self.atpps for annealed in (True, False)
        ]


RECIPES = {
    "tinycpt": Recipe(
        {
            "22k": Size(24, 2, 6e-3, seeds=(0, 1)),
            "43k": Size(36, 3, 4.5e-3, seeds=(0, 1)),
            "82k": Size(52, 4, 3.2e-3),
            "147k": Size(72, 6, 2.4e-3),
        }
    ),
    "tiny": Recipe(
        {"tiny": Size(8, 1, 1e-2, layers=1, seeds=(0, 1))},
        stages=(1, 2),
        replays=(0.25, 1.0),
        atpps=(0.5, 1),
        context=16,
        windows=64,
    ),
}
RECIPES["tinycode"] = replace(RECIPES["tinycpt"], target="python")
_sizes = {n: replace(RECIPES["tinycpt"].sizes[n], seeds=(7,)) for n in ("82k", "147k")}
_sizes["252k"] = Size(
    96, 8, 1.9e-3, seeds=(7,)
)  # the rates of the others fall as N^-0.48
RECIPES["loop"] = replace(RECIPES["tinycpt"], sizes=_sizes)  # see loop.py
RECIPES["tiny-python"] = replace(RECIPES["tiny"], target="python")


@dataclass(frozen=True)
class Unit:
    """A piece of work: a pre-trained base (no replay), or one adaptation run from it.

    Runs of other `order` than 0 draw their text in other orders; the tables have none.
    """

    size: str
    seed: int
    ptpp: int
    replay: float | None = None
    order: int = 0

    @property
    def base(self) -> str:
        """Name of the pre-trained model."""
        return f"{self.size}-p{self.ptpp}-s{self.seed}"

    @property
    def name(self) -> str:
        """Name of the trajectory; a base has its own."""
        return self.base if self.replay is None else f"{self.base}-r{self.replay:g}"


class Ledger:
    """Losses measured so far, one line an evaluation, appended whole and synced."""

    COLUMNS = "run,base,seed,params,tokens,replay,ptpp,atpp,annealed"

    def __init__(self, path: Path, domains: tuple[str, ...]) -> None:
        self.path, self.header = path, ",".join([self.COLUMNS, *domains])

    def mend(self) -> None:
        """Start the file, or cut off the line that a kill left half written."""
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1] or (self.header + "\n").encode()
        if whole != text:
            self.path.write_bytes(whole)

    def done(self, run: str) -> set[tuple[str, str]]:
        """(atpp, annealed) of the evaluations a run has."""
        rows = (line.split(",") for line in self.path.read_text().splitlines()[1:])
        return {(row[7], row[8]) for row in rows if row[0] == run}

    def add(self, *cells: object) -> None:
        """Append one evaluation; one write to an appending file is never interleaved."""
        with self.path.open("ab", buffering=0) as file:
            file.write((",".join(map(str, cells)) + "\n").encode())
            os.fsync(file.fileno())


class Lab:
    """The recipe at work in a folder, which holds text, weights and the ledger."""

    def __init__(self, recipe: Recipe, work: Path, text: Path | None) -> None:
        self.recipe, self.work = recipe, work
        self.text = text or work / "corpus"
        self.ledger = Ledger(work / "rows.csv", recipe.domains)
        self.corpus = [
            corpus.load(self.text, domain, "train") for domain in recipe.domains
        ]
        self.windows = held_out(
            self.text, recipe.domains, recipe.context, recipe.windows
        )

    def needs(self, unit: Unit) -> Path | None:
        """Checkpoint that must exist before a unit can start."""
        if unit.replay is not None:
            return self.weights(unit)
        earlier = [p for p in self.recipe.stages if p < unit.ptpp]
        return self.trunk(Unit(unit.size, unit.seed, max(earlier))) if earlier else None

    def ready(self, unit: Unit) -> bool:
        """Whether a unit can start."""
        need = self.needs(unit)
        return need is None or need.exists()

    def weights(self, unit: Unit) -> Path:
        """Where a pre-trained base lies."""
        return self.work / "weights" / f"{unit.base}.pt"

    def trunk(self, unit: Unit) -> Path:
        """Where the trunk lies, as it was when the branch to this base left it."""
        return self.work / "weights" / f"{unit.base}-trunk.pt"

    def partial(self, unit: Unit) -> Path:
        """Where the trunk on its way to a base lies."""
        return self.work / "weights" / f"{unit.base}-partial.pt"

    def finished(self, unit: Unit) -> bool:
        """Whether nothing is left to do for a unit."""
        if unit.replay is None:
            return self.weights(unit).exists() or self._measured(unit)
        return self.ledger.done(unit.name) >= set(self.recipe.evaluations(unit))

    def _measured(self, base: Unit) -> bool:
        """Whether every run of a base's size and seed is in the ledger: no base is needed then."""
        like = [
            u for u in self.recipe.units() if (u.size, u.seed) == (base.size, base.seed)
        ]
        bases = bool(like) and all(self.ledger.done(unit.base) for unit in like)
        return bases and all(
            self.finished(unit) for unit in like if unit.replay is not None
        )

    def cost(self, unit: Unit) -> float:
        """Rough time of a unit, in arbitrary units: bytes x (parameters + overhead)."""
        recipe, stages = self.recipe, (0, *self.recipe.stages)
        if unit.replay is None:
            before = stages[stages.index(unit.ptpp) - 1]
            budget = unit.ptpp - before + recipe.decay * before
        else:
            budget = max(recipe.atpps) + recipe.decay * sum(recipe.atpps)
        params = recipe.params(unit.size)
        return budget * params * (params + 56_000)

    def record(
        self, unit: Unit, atpp: float, annealed: bool, model: GPT
    ) -> dict[str, float]:
        """Evaluate a model and write the line."""
        recipe = self.recipe
        loss = losses(model, self.windows)
        params, step = recipe.params(unit.size), recipe.steps(unit.size, atpp)
        tokens = step * recipe.batch * recipe.context
        replay = 1.0 if unit.replay is None else unit.replay
        cells = (
            unit.name,
            unit.base,
            unit.seed,
            params,
            tokens,
            replay,
            unit.ptpp,
            f"{atpp:g}",
        )
        self.ledger.add(*cells, annealed, *(f"{loss[d]:.5f}" for d in recipe.domains))
        return loss

    def do(self, unit: Unit) -> None:
        """Do what is left of a unit."""
        if self.finished(unit):
            return
        if unit.replay is None:
            self.pretrain(unit)
        else:
            self.adapt(unit)

    def pretrain(self, unit: Unit) -> None:
        """Carry the trunk to this stage and anneal a branch: the base."""
        recipe, size = self.recipe, unit.size
        torch.manual_seed(unit.seed)
        model = GPT(recipe.sizes[size], recipe.context)
        stream = self.stream(1.0, (unit.seed, recipe.params(size), 0))
        run = Run(model, stream, recipe.rate(size, 0))
        saved = self.trunk(unit), self.partial(unit), self.needs(unit)
        if trunk := next((path for path in saved if path and path.exists()), None):
            run.load(trunk)
        end = recipe.steps(size, unit.ptpp)
        while run.step < (branch := self.branch(end)):
            run.advance(min(run.step + SAVED, branch))
            run.save(self.partial(unit))
        run.save(self.trunk(unit))
        self.partial(unit).unlink(missing_ok=True)
        base = run.annealed(end)
        if not self.ledger.done(unit.base):
            self.record(unit, 0, True, base)
        save({"model": base.state_dict()}, self.weights(unit))

    def branch(self, end: int) -> int:
        """Step at which the rate starts to fall, for a budget that ends at `end`."""
        return min(end - 1, int((1 - self.recipe.decay) * end))

    def stream(self, replay: float, key: tuple[int, ...]) -> Stream:
        """Training batches."""
        return Stream(self.corpus, replay, key, self.recipe.context, self.recipe.batch)

    def base(self, unit: Unit) -> GPT:
        """Pre-trained model that a run starts from."""
        model = GPT(self.recipe.sizes[unit.size], self.recipe.context)
        model.load_state_dict(
            torch.load(self.weights(unit), map_location=DEVICE)["model"]
        )
        return model.to(DEVICE)

    def start(self, unit: Unit) -> Run:
        """Adaptation run at its first step: the base's weights, a fresh optimiser."""
        recipe, size = self.recipe, unit.size
        key = (unit.seed, recipe.params(size), unit.ptpp, round(1e6 * unit.replay))
        key += (unit.order,) * (unit.order > 0)
        return Run(self.base(unit), self.stream(unit.replay, key), recipe.rate(size, 1))

    def adapt(self, unit: Unit) -> None:
        """Adapt a base at one replay and measure every budget, annealed and not."""
        recipe, run = self.recipe, self.start(unit)
        done = self.ledger.done(unit.name)
        ends = {atpp: recipe.steps(unit.size, atpp) for atpp in recipe.atpps}
        events = [(self.branch(end), atpp, True) for atpp, end in ends.items()]
        events += [(end, atpp, False) for atpp, end in ends.items()]
        for step, atpp, annealed in sorted(events):
            run.advance(step)
            if (f"{atpp:g}", str(annealed)) not in done:
                model = run.annealed(ends[atpp]) if annealed else run.model
                self.record(unit, atpp, annealed, model)

    def bases(self, last: Unit) -> list[Unit]:
        """Bases of a size and seed up to a stage; each goes on from the one before."""
        return [
            Unit(last.size, last.seed, p) for p in self.recipe.stages if p <= last.ptpp
        ]

    def annealed(
        self, unit: Unit, atpps: Iterable[float]
    ) -> Iterator[tuple[float, GPT]]:
        """Annealed models of one trajectory at any budgets; its base is made if need be."""
        for base in self.bases(unit):
            self.do(base)
        run = self.start(unit)
        for atpp in sorted(atpps):
            end = self.recipe.steps(unit.size, atpp)
            run.advance(self.branch(end))
            yield atpp, run.annealed(end)

    def one(self, unit: Unit, atpp: float) -> dict[str, float]:
        """Losses of one annealed run at a point off the grid."""
        ((_, model),) = self.annealed(unit, [atpp])
        return losses(model, self.windows)
