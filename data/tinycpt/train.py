"""A byte-level GPT and its training: model, data order, learning-rate schedule, held-out loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import corpus
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Size:
    """Shape of one model and its peak learning rate, the same in both phases."""

    width: int
    heads: int
    rate: float
    layers: int = 2
    seeds: tuple[int, ...] = (0,)


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a layer norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = (
            nn.LayerNorm(width, bias=False),
            nn.LayerNorm(width, bias=False),
        )
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(
            batch, time, 3, self.heads, width // self.heads
        )
        mixed = functional.scaled_dot_product_attention(
            *qkv.permute(2, 0, 3, 1, 4), is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Decoder over bytes: tied embeddings, learned positions, no biases."""

    def __init__(self, size: Size, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, size.width)
        self.positions = nn.Parameter(torch.empty(context, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        nn.init.normal_(self.bytes.weight, std=0.1)
        # Positions start from sinusoids: a narrow model given few steps finds the previous byte
        # late otherwise, at a moment that differs from run to run.
        pair = torch.arange(size.width) // 2
        angle = torch.arange(context)[:, None] / context ** (2 * pair / size.width)
        even = torch.arange(size.width) % 2 == 0
        self.positions.data = 0.1 * torch.where(even, angle.sin(), angle.cos())
        for name, weight in self.blocks.named_parameters():
            if weight.ndim == 2:  # residual writers smaller, as in GPT-2
                writer = name.endswith(("out.weight", "down.weight"))
                spread = (3 * size.width) ** -0.5
                nn.init.normal_(
                    weight, std=spread / math.sqrt(2 * size.layers) ** writer
                )

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next byte."""
        x = self.bytes(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.bytes.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean nats per byte over windows of ``context + 1`` bytes."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


class Stream:
    """Batches of windows from both languages in an order that `key` alone decides.

    Sequence i is source text when ``floor((i + 1) replay) > floor(i replay)``, so every prefix
    holds the replay share to within one window. Each language is visited in a random order
    without repetition, then in another. Batches are addressed by step, so training resumes and
    branches anywhere.
    """

    def __init__(
        self,
        text: list[np.ndarray],
        replay: float,
        key: tuple[int, ...],
        context: int,
        batch: int,
    ) -> None:
        self.text, self.replay, self.key = text, replay, key
        self.context, self.batch = context, batch
        self.orders: dict[tuple[int, int], np.ndarray] = {}

    def _window(self, domain: int, position: int) -> np.ndarray:
        count = (len(self.text[domain]) - 1) // self.context
        epoch, index = divmod(position, count)
        if (domain, epoch) not in self.orders:
            rng = np.random.default_rng((*self.key, domain, epoch))
            self.orders[domain, epoch] = rng.permutation(count)
        start = self.orders[domain, epoch][index] * self.context
        return self.text[domain][start : start + self.context + 1]

    def __getitem__(self, step: int) -> Tensor:
        """Batch of one step, (batch, context + 1) bytes."""
        windows = []
        for i in range(step * self.batch, (step + 1) * self.batch):
            source, after = (int(j * self.replay + 1e-9) for j in (i, i + 1))
            target = after == source
            windows.append(self._window(int(target), i - source if target else source))
        return torch.from_numpy(np.stack(windows)).to(DEVICE, torch.long)


class Run:
    """A model in training: weights, optimiser, steps done."""

    def __init__(
        self, model: GPT, stream: Stream, rate: Callable[[int], float]
    ) -> None:
        self.model, self.stream, self.rate, self.step = (
            model.to(DEVICE),
            stream,
            rate,
            0,
        )
        self.adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)

    def advance(self, step: int, decay_from: int | None = None) -> None:
        """Train up to `step`; with `decay_from` the rate falls from there to 0 at `step`."""
        self.model.train()
        while self.step < step:
            rate = self.rate(self.step)
            if decay_from is not None:
                rate *= (step - self.step) / (step - decay_from)
            self.adam.param_groups[0]["lr"] = rate
            self.adam.zero_grad()
            self.model.loss(self.stream[self.step]).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adam.step()
            self.step += 1

    def annealed(self, step: int) -> GPT:
        """Model that a branch from here leaves at `step`, its rate decayed to 0; `self` stays."""
        stream, self.stream = self.stream, None  # shared, not copied
        branch = copy.deepcopy(self)
        branch.stream = self.stream = stream
        branch.advance(step, decay_from=self.step)
        return branch.model

    def save(self, path: Path) -> None:
        """Write weights, optimiser and step."""
        state = {"model": self.model.state_dict(), "adam": self.adam.state_dict()}
        save({**state, "step": self.step}, path)

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        state = torch.load(path, map_location=DEVICE)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.step = state["step"]


def save(state: dict, path: Path) -> None:
    """Write a checkpoint beside its place and rename it, so that no half of one is ever read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    torch.save(state, beside)
    beside.rename(path)


def held_out(
    folder: Path, domains: tuple[str, ...], context: int, windows: int
) -> dict[str, Tensor]:
    """Cut fixed evaluation windows, spread evenly over the held-out text of each language."""
    result = {}
    for domain in domains:
        text = corpus.load(folder, domain, "heldout")
        starts = np.linspace(0, len(text) - context - 1, windows).astype(int)
        rows = np.stack([text[start : start + context + 1] for start in starts])
        result[domain] = torch.from_numpy(rows).to(DEVICE, torch.long)
    return result


@torch.no_grad()
def losses(model: GPT, windows: dict[str, Tensor]) -> dict[str, float]:
    """Held-out loss of each language in nats per byte."""
    model.eval()
    return {
        domain: float(
            np.mean([model.loss(part).item() for part in rows.chunk(len(rows) // 64)])
        )
        for domain, rows in windows.items()
    }
