"""Trains the embedded model: `python -m scheduler.models.training.train FOLDER`, under an hour of processor.

A row is a whole conversation, and only what the model says in it is learnt. Rows grow: copying is learnt
from short ones, where a question meets few facts, and is then stretched to long prompts. FOLDER keeps a
checkpoint, from which the same command goes on, and the log. Step n sees the same data in every run of one
seed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.multiprocessing
from tokenizers import Tokenizer
from torch import Tensor, distributed

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.training.conversations import Encoded, Template, row
from scheduler.models.training.muon import Muon
from scheduler.models.training.network import Shape, Weights, hidden_states, initial_weights, rotation

SEED: Final = 10
STEP_TOKENS: Final = 8192
STAGES: Final = (
    (650, {256: 1}),
    (400, {256: 1, 512: 4}),
    (200, {512: 1, 1024: 2}),
    (350, {512: 1, 1024: 1, 2048: 2}),
    (700, {256: 1, 512: 2, 1024: 1, 2048: 1}),
)
"""Steps, and how the rows' lengths are drawn in them."""

STEPS: Final = sum(steps for steps, _ in STAGES)
WARM_UP_STEPS: Final = 40
DECAY_FROM: Final = 840
CHECKPOINT_EVERY: Final = 25
TEST_EVERY: Final = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one length; `said` are the flat positions whose next token the model says."""

    ids: Tensor
    said: Tensor
    targets: Tensor
    rows: list[Encoded]


class Data:
    """Deterministic batches by step, sharded over processes."""

    def __init__(self, seed: int, rank: int, processes: int) -> None:
        self._seed = seed
        self._rank = rank
        self._processes = processes
        self._template = Template()
        self._tokenizer = Tokenizer.from_file(str(EMBEDDED_FOLDER / "tokenizer.json"))

    def batch(self, step: int) -> Batch:
        key, lengths = f"{self._seed}/{step}", _lengths(step)
        tokens = random.Random(key).choices(list(lengths), list(lengths.values()))[0]
        mine = range(self._rank, STEP_TOKENS // tokens, self._processes)
        return self._batch([f"{key}/{number}" for number in mine], tokens, test=False)

    def test_batch(self, tokens: int, number: int) -> Batch:
        count = STEP_TOKENS // tokens // self._processes
        keys = [f"test/{self._seed}/{tokens}/{number}/{row}" for row in range(count)]
        return self._batch(keys, tokens, test=True)

    def _batch(self, keys: list[str], tokens: int, *, test: bool) -> Batch:
        rows = [row(random.Random(key), tokens, self._template, self._tokenizer, test=test) for key in keys]
        ids = torch.zeros(len(rows), tokens, dtype=torch.long)
        said = torch.zeros(len(rows), tokens, dtype=torch.bool)
        for number, one in enumerate(rows):
            ids[number, : len(one.ids)] = torch.tensor(one.ids)
            said[number, : len(one.own) - 1] = torch.tensor(one.own[1:])
        positions = said.flatten().nonzero().squeeze(1)
        return Batch(ids, positions, ids.flatten()[positions + 1], rows)


def _lengths(step: int) -> dict[int, int]:
    """Return the lengths of rows in tokens, with their weights."""
    for steps, lengths in STAGES:
        if step < steps:
            return lengths
        step -= steps
    raise ValueError("training has no such step")


class Trainer:
    """The weights, their optimizer and how far they are."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.step = 0
        self.weights: Weights = initial_weights(shape, torch.Generator().manual_seed(seed))
        for tensor in self.weights.values():
            tensor.requires_grad_()
        matrices = [t for name, t in self.weights.items() if t.ndim == 2 and "embed" not in name]
        others = [t for name, t in self.weights.items() if t.ndim == 1 or "embed" in name]
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self._hidden: Any = torch.compile(hidden_states, dynamic=False)

    def logits(self, batch: Batch) -> Tensor:
        cosines, sines = rotation(self.shape, batch.ids.shape[1], torch.bfloat16)
        hidden = self._hidden(self.weights, self.shape, batch.ids, cosines, sines)
        said = hidden.view(-1, self.shape.hidden)[batch.said]
        embedding = self.weights["model.embed_tokens.weight"]
        return torch.nn.functional.linear(said, embedding.to(said.dtype)).float()

    def learn(self, batch: Batch) -> float:
        """One step; returns the loss in nats per token."""
        loss = torch.nn.functional.cross_entropy(self.logits(batch), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        self._share_gradients()
        rate = min(1.0, (self.step + 1) / WARM_UP_STEPS, (STEPS - self.step) / (STEPS - DECAY_FROM))
        self._muon.step(0.02 * rate)
        for group in self._adam.param_groups:
            group["lr"] = 0.004 * rate
        self._adam.step()
        for tensor in self.weights.values():
            tensor.grad = None
        self.step += 1
        return float(loss.item())

    def _share_gradients(self) -> None:
        """Each process's mean over its rows becomes the mean of all processes."""
        if not distributed.is_initialized():
            return
        gradients = [tensor.grad for tensor in self.weights.values() if tensor.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat)
        parts = flat.div_(distributed.get_world_size()).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def right_answers(self, batch: Batch) -> Counter[tuple[str, bool]]:
        """Answers by metric and by whether greedy decoding would have chosen every token of them: it does so
        exactly if the best token is the right one at every place of the right answer."""
        right = torch.zeros(batch.ids.numel(), dtype=torch.bool)
        with torch.no_grad():
            right[batch.said] = self.logits(batch).argmax(-1) == batch.targets
        found: Counter[tuple[str, bool]] = Counter()
        for line, one in zip(right.view(batch.ids.shape).tolist(), batch.rows, strict=True):
            answers, inside = [], False
            for place, own in enumerate(one.own):
                if own and not inside:
                    answers.append(True)
                if own:
                    answers[-1] = answers[-1] and line[place - 1]
                inside = own
            found.update(zip(one.graded, answers, strict=True))
        return found

    def save(self, path: Path) -> None:
        state = {
            "step": self.step, "weights": {name: t.detach() for name, t in self.weights.items()},
            "muon": self._muon.momenta, "adam": self._adam.state_dict(),
        }  # fmt: skip
        torch.save(state, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        self.step = state["step"]
        with torch.no_grad():
            for name, tensor in self.weights.items():
                tensor.copy_(state["weights"][name])
        self._muon.momenta = state["muon"]
        self._adam.load_state_dict(state["adam"])


def train(rank: int, processes: int, folder: Path, port: int) -> None:
    """One of `processes`, each with a thread; they meet on `port` of this machine after every step."""
    torch.set_num_threads(1)
    if processes > 1:
        meeting = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    data, trainer = Data(SEED, rank, processes), Trainer(Shape(), SEED)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
    if rank > 0:
        while trainer.step < STEPS:
            trainer.learn(data.batch(trainer.step))
        return
    losses: list[float] = []
    began = time.perf_counter()
    with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
        while trainer.step < STEPS:
            losses.append(trainer.learn(data.batch(trainer.step)))
            entry: dict[str, object] = {}
            if trainer.step % CHECKPOINT_EVERY == 0 or trainer.step == STEPS:
                seconds = time.perf_counter() - began
                entry = {
                    "step": trainer.step,
                    "loss": round(sum(losses) / len(losses), 4),
                    "seconds": round(seconds),
                }
                entry["tokens_per_second"] = round(len(losses) * STEP_TOKENS / seconds)
                entry["cpu_seconds"] = round(time.process_time())
                losses, began = [], time.perf_counter()
                trainer.save(checkpoint)
            if trainer.step % TEST_EVERY == 0:
                entry["right"] = _tested(trainer, data, 256 if trainer.step <= STAGES[0][0] else 512)
            if entry:
                log.write(json.dumps(entry) + "\n")
                log.flush()


def _tested(trainer: Trainer, data: Data, tokens: int) -> dict[str, float]:
    found: Counter[tuple[str, bool]] = Counter()
    for number in range(2):
        found += trainer.right_answers(data.test_batch(tokens, number))
    names = sorted({name for name, _ in found})
    return {name: round(found[name, True] / (found[name, True] + found[name, False]), 3) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model, or go on with it.")
    parser.add_argument(
        "--processes", type=int, default=1, help="threads would wait for each other at every sum"
    )
    parser.add_argument("--port", type=int, default=29500, help="where the processes meet")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = (arguments.processes, arguments.folder, arguments.port)
    if arguments.processes == 1:
        train(0, *options)
    else:
        torch.multiprocessing.spawn(train, options, nprocs=arguments.processes)  # type: ignore[no-untyped-call, unused-ignore]


if __name__ == "__main__":
    main()
