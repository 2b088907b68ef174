"""Processes that stay and take cases: a group of ranks for the tests of sparsegen.torch.distributed."""

from __future__ import annotations

import multiprocessing
import traceback

PATIENCE = 60  # seconds after which a rank that does not answer hangs
START = 300  # seconds to import torch on a machine that has other work


def _serve(rank, size, store, pipe):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    pipe.send("ready")
    while (case := pipe.recv()) is not None:
        function, given = case
        try:
            pipe.send(("found", function(rank, size, **given)))
        except Exception as error:
            pipe.send(
                ("raised", error if type(error).__module__ == "builtins" else RuntimeError(traceback.format_exc()))
            )
    dist.destroy_process_group()


class Ranks:
    """`size` processes with a default process group; each case runs on all of them."""

    def __init__(self, size, folder):
        context = multiprocessing.get_context("spawn")
        self.size, self.pipes, self.processes, self.hangs = size, [], [], False
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, folder / "store", theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            assert pipe.poll(START), "a rank did not start"
            assert pipe.recv() == "ready"

    def outcomes(self, function, **given):
        """("found", result) or ("raised", error) of each rank."""
        assert not self.hangs, "a rank hung before"
        for pipe in self.pipes:
            pipe.send((function, given))
        self.hangs = not all(pipe.poll(PATIENCE) for pipe in self.pipes)
        assert not self.hangs, "a rank hangs"
        return [pipe.recv() for pipe in self.pipes]

    def run(self, function, **given):
        """The result of ``function(rank, size, **given)`` on each rank."""
        found = []
        for kind, what in self.outcomes(function, **given):
            if kind == "raised":
                raise what
            found.append(what)
        return found

    def errors(self, function, **given):
        """The error of each rank."""
        outcomes = self.outcomes(function, **given)
        assert [kind for kind, _ in outcomes] == ["raised"] * self.size, outcomes
        return [what for _, what in outcomes]

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(0 if self.hangs else PATIENCE)
