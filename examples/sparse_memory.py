"""A memory network with sparse reads: who is where, in stories longer than those it learnt from.

    python examples/sparse_memory.py [--quick] [--figure memory.svg] [--out results.json]

A story is a list of facts, who went where; a question asks where someone is: the last fact about them counts. The
network keeps a slot a fact and reads the mean of the slots under a map of their scores. It learns from stories of 20
facts and is asked about longer ones. A dense read gives each further fact some weight; a sparse one need not.
Takes a few minutes on one core.
"""

from __future__ import annotations

from typing import Any

import torch
from running import Found, command, summed_up
from torch import Tensor, nn

import sparsegen.torch as sgt

SEEDS, PEOPLE, PLACES, SIZE, LEARNT = 5, 10, 12, 32, 20
LENGTHS = (20, 50, 100, 200, 400)
READS: dict[str, dict[str, Any]] = {
    "softmax": {"mapping": "softmax"},
    "entmax-1.5": {"mapping": "entmax15"},
    "sparsemax": {"mapping": "sparsemax"},
    "sparsegen-lin, lam 0.5": {"mapping": "sparsegen_lin", "lam": 0.5},
    "sparsehourglass, q 1": {"mapping": "sparsehourglass", "q": 1.0},
}


def stories(n: int, facts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """People and places of the facts (n, facts), a person asked for, who is in the story, and where they are."""
    people, places = torch.randint(PEOPLE, (n, facts)), torch.randint(PLACES, (n, facts))
    asked = people.gather(1, torch.randint(facts, (n, 1)))
    last = torch.where(people == asked, torch.arange(facts), -1).amax(1, keepdim=True)
    return people, places, asked.squeeze(1), places.gather(1, last).squeeze(1)


class MemoryNetwork(nn.Module):
    """Slots addressed by person and age, read by a map."""

    def __init__(self, controls: dict[str, Any]) -> None:
        super().__init__()
        self.key, self.question, self.value = (
            nn.Embedding(PEOPLE, SIZE),
            nn.Embedding(PEOPLE, SIZE),
            nn.Embedding(PLACES, SIZE),
        )
        self.age = nn.Sequential(nn.Linear(1, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
        self.read, self.answer = sgt.make_map(**controls), nn.Linear(SIZE, PLACES)

    def forward(self, people: Tensor, places: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the places, and the weights of the slots."""
        facts = people.shape[1]
        ages = torch.log1p(torch.arange(facts - 1, -1, -1, dtype=torch.float32))[:, None]  # of the last fact 0
        # Without the root the scores start so far apart that a sparse read sees one slot, and learns from no other.
        match = (self.key(people) @ self.question(asked)[:, :, None]).squeeze(2) / SIZE**0.5
        scores = match + self.age(ages).squeeze(1)
        weights = self.read(scores)
        return self.answer((weights[:, None] @ self.value(places)).squeeze(1)), weights


def learn(controls: dict[str, Any], steps: int, seed: int) -> MemoryNetwork:
    """Train on short stories."""
    torch.manual_seed(seed)
    model = MemoryNetwork(controls)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(steps):
        people, places, asked, answer = stories(128, LEARNT)
        loss = nn.functional.cross_entropy(model(people, places, asked)[0], answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def examined(model: MemoryNetwork, facts: int, n: int) -> Found:
    """Share of right answers on new stories of a length, and the slots that were read."""
    torch.manual_seed(facts)
    people, places, asked, answer = stories(n, facts)
    scores, weights = model(people, places, asked)
    right = (scores.argmax(1) == answer).float().mean().item()
    return {"facts": facts, "accuracy": right, "slots": (weights > 0).sum(1).float().mean().item()}


def work(quick: bool) -> Found:
    """Train a network for each read and seed, and ask it about stories of every length."""
    steps, seeds, n = (5, 2, 20) if quick else (1500, SEEDS, 2000)
    rows = []
    for seed in range(seeds):
        for name, controls in READS.items():
            model = learn(controls, steps, seed)
            rows += [{"read": name, "seed": seed, **examined(model, facts, n)} for facts in LENGTHS]
    setting = {"steps": steps, "seeds": seeds, "learnt": LEARNT, "people": PEOPLE, "places": PLACES, "stories": n}
    return {"setting": setting, "rows": rows, "summary": summed_up(rows, ("read", "facts"), ("accuracy", "slots"))}


def drawn(found: Found) -> Any:
    """A figure of right answers, and of slots read, against the length of a story."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for name in dict.fromkeys(row["read"] for row in found["summary"]):
        rows = [row for row in found["summary"] if row["read"] == name]
        for axes, measure in zip(panels, ("accuracy", "slots")):
            means, halves = ([row[measure][part] for row in rows] for part in ("mean", "half"))
            axes.errorbar([row["facts"] for row in rows], means, yerr=halves, marker="o", capsize=3, label=name)
    for axes, text in zip(panels, ("right answers", "slots read")):
        axes.set(xlabel="facts in a story", ylabel=text, xscale="log")
        axes.set_xticks(LENGTHS, labels=[str(n) for n in LENGTHS])
        axes.set_xticks([], minor=True)
    panels[1].set_yscale("log")
    panels[1].set_yticks([1, 3, 10, 30, 100, 300], labels=["1", "3", "10", "30", "100", "300"])
    panels[1].set_yticks([], minor=True)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


if __name__ == "__main__":
    command(__doc__, work, drawn)
