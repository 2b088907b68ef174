"""Make a trained language model sparse: a small one of characters, trained with softmax, switched and fine-tuned.

    python examples/sparse_language_model.py [--steps 400] [--figure loss.svg] [--out results.json]

The text is the help of Python itself (pydoc's topics), so nothing is downloaded. Takes some minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sparsegen.torch as sgt
from sparsegen.bench.measure import machine
from sparsegen.experiments.store import write_text
from sparsegen.transformers import calibrate, sparsify

CONTEXT, BATCH = 128, 16


def text() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Characters as numbers: for training and held out, and how many kinds there are."""
    whole = "\n".join(topics[name] for name in sorted(topics))
    kinds = sorted(set(whole))
    numbers = torch.tensor([kinds.index(c) for c in whole[:400_000]])
    cut = len(numbers) * 9 // 10
    return numbers[:cut], numbers[cut:], len(kinds)


def batch(numbers: torch.Tensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Pieces of the text, which are their own labels: the model shifts them."""
    starts = torch.randint(len(numbers) - CONTEXT, (BATCH,), generator=generator)
    ids = torch.stack([numbers[s : s + CONTEXT] for s in starts.tolist()])
    return {"input_ids": ids, "labels": ids}


def train(model: LlamaForCausalLM, numbers: torch.Tensor, steps: int, support: float | None = None) -> None:
    """Train; with `support`, a scheduler turns the dials until queries use so many keys."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=max(steps, 2))
    scheduler = sgt.DensityScheduler(model, support, rate=0.2, warmup=steps // 4) if support else None
    model.train()
    for _ in range(steps):
        loss = model(**batch(numbers, generator)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if scheduler:
            scheduler.step()
    if scheduler:
        scheduler.remove()


def measured(model: LlamaForCausalLM, held_out: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Loss on held-out text, keys a query uses on average, and seconds."""
    model.eval()
    start = time.perf_counter()
    with torch.no_grad():
        loss = sum(model(**given).loss.item() for given in held_out) / len(held_out)
        seconds = time.perf_counter() - start
        support = (CONTEXT + 1) / 2
        if hasattr(model.config, "sparsegen"):
            with sgt.AttentionProbe(model) as probe:
                for given in held_out[:2]:
                    model(**given)
            rows = probe.table()
            support = sum(row["support"] for row in rows) / len(rows)
    return {"loss": loss, "support": support, "seconds": seconds}


SWITCHES = [
    *(("sparsegen_softmax", {"lam": lam}) for lam in (0.02, 0.03, 0.05, 0.1, 0.2, 0.3)),
    *(("sparsegen_lin", {"lam": lam}) for lam in (-8.0, -4.0, -2.0, -1.0, 0.0)),
    ("entmax", {"alpha": 1.5}),
]


def drawn(found: dict) -> Any:
    """A figure of loss against mean support, a line for each map."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes, rows = figure.subplots(), found["switched"]
    for mapping in dict.fromkeys(row["mapping"] for row in rows):
        of_map = sorted((r["support"], r["loss"]) for r in rows if r["mapping"] == mapping)
        axes.plot(*zip(*of_map), marker="o", label=mapping)
    axes.axhline(found["softmax"]["loss"], color="gray", linestyle=":", label="softmax")
    axes.set(xlabel="keys a query uses", ylabel="held-out loss", xscale="log")
    axes.set_xticks([2, 3, 5, 10, 20], labels=["2", "3", "5", "10", "20"])
    axes.set_xticks([], minor=True)
    axes.legend()
    return figure


def main() -> None:
    """Train, switch, calibrate, fine-tune; print loss, support and time at each step."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--figure", type=Path)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    torch.manual_seed(0)
    numbers, rest, kinds = text()
    generator = torch.Generator().manual_seed(1)
    half = len(rest) // 2  # one half to calibrate on, which the model has not seen either, one to measure with
    own, held_out = [batch(rest[:half], generator) for _ in range(4)], [batch(rest[half:], generator) for _ in range(6)]
    config = LlamaConfig(
        vocab_size=kinds, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    found: dict = {"steps": asked.steps, "switched": []}

    def tell(what: str, row: dict[str, float]) -> None:
        print(f"{what:42s} loss {row['loss']:.4f}   keys {row['support']:6.1f}   {row['seconds']:.2f} s", flush=True)

    start = time.perf_counter()
    train(model, numbers, asked.steps)
    found["softmax"] = measured(model, held_out)
    tell(f"softmax, trained in {time.perf_counter() - start:.0f} s", found["softmax"])
    print("\nSwitched without retraining:")
    for mapping, controls in SWITCHES:
        other = copy.deepcopy(model)
        sparsify(other, mapping, **controls)
        row = {"mapping": mapping, **controls, **measured(other, held_out)}
        found["switched"].append(row)
        tell(f"  {mapping} {controls}", row)
    print("\nCalibrated: at most 0.5 % above softmax's loss on four batches of text that is in neither:")
    other = copy.deepcopy(model)
    sparsify(other)
    lam = calibrate(other, own, max_loss_increase=0.005)[0]["lam"]
    found["calibrated"] = {"lam": lam, **measured(other, held_out)}
    tell(f"  sparsegen_softmax lam {lam:.3f}", found["calibrated"])
    print("\nFine-tuned for half as many steps:")
    for what, mapping, controls, support in (
        ("softmax going on", None, {}, None),
        ("sparsegen_lin, lam -2", "sparsegen_lin", {"lam": -2.0}, None),
        ("sparsegen_lin to 3 keys", "sparsegen_lin", {"lam": -2.0}, 3.0),
    ):
        other = copy.deepcopy(model)
        if mapping:
            sparsify(other, mapping, **controls)
        train(other, numbers, asked.steps // 2, support)
        row = measured(other, held_out)
        found[what] = row
        tell(f"  {what}", row)
    if asked.figure:
        drawn(found).savefig(asked.figure)
    if asked.out:
        write_text(asked.out, json.dumps({**found, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
