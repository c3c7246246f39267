"""A small training step for tests of several ranks."""

import torch

import rung


def make(parallel: str = "ddp") -> rung.Workload:
    return rung.Workload(
        "ranked",
        model=lambda: torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)),
        inputs=lambda seed: torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        parallel=parallel,  # type: ignore[arg-type]
        samples=8,
    )


class Trained:
    """Of one rank: its weights after a step, and what they would be after a step of its own."""

    def step(self) -> list[list[float]]:
        from rung.engine.parallel import in_parallel
        from rung.engine.step import Step
        from rung.hardware.device import cpu
        from rung.hardware.ranks import Ranks
        from rung.plan import Plan
        from rung.workload import of_rank, seeded_model

        ranks, device = Ranks.here, cpu()
        ranks.join(on_gpu=False)
        workload = of_rank(make(), ranks.rank, ranks.world)
        found = []
        for called in (True, False):
            model = seeded_model(workload)
            step = Step(
                workload, model, Plan(), device, called=in_parallel(workload, model, device) if called else None
            )
            step(workload.inputs(1))
            found.append([float(value) for p in model.parameters() for value in p.detach().flatten()])
        return [*found, [float(value) for value in workload.inputs(1).flatten()]]
