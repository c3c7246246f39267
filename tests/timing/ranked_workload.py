"""A small training step for tests of several ranks."""

import torch

import rung


class Blocks(torch.nn.ModuleList):
    """Which FSDP2 gathers one by one, though each may be a list, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = block(x).tanh()
        return x


def make(parallel: str = "ddp", blocks: int = 0) -> rung.Workload:
    def model() -> torch.nn.Module:
        middle = (
            Blocks(Blocks(torch.nn.Linear(32, 32) for _ in range(2)) for _ in range(blocks))
            if blocks
            else torch.nn.ReLU()
        )
        return torch.nn.Sequential(torch.nn.Linear(16, 32), middle, torch.nn.Linear(32, 4))

    return rung.Workload(
        "ranked",
        model=model,
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


def powered(parallel: str = "ddp") -> rung.Workload:
    """The same on GPUs that are not there: that of rank 0 takes 100 W at 1900 MHz, that of rank 1 200 W at 1700 MHz."""
    import os
    import time

    from rung.hardware.sensors import Reading
    from rung.profilers import rank_sensors
    from rung.timing import timed

    class Sensor:
        source, limit, bus = "made", 750.0, None

        def read(self) -> Reading:
            number = int(os.environ.get("RANK", 0))
            held = ("power cap",) if number else ()
            watts, clock = 100.0 * (number + 1), 1900.0 - 200 * number
            return Reading(time.monotonic(), power=watts, core=clock, used=(number + 1) << 30, throttled=held)

    timed.sensor_for = rank_sensors.sensor_for = lambda gpu: Sensor()
    return make(parallel)
