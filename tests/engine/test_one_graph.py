"""Under DistributedDataParallel torch.compile cuts a model where a bucket of gradients ends, unless the plan says otherwise."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Exchange, Plan
from rung.workload import Workload, seeded_model

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(600, 600) for _ in range(6))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

w = Workload("net", Net, lambda seed: torch.ones(4, 600), loss=lambda y, x: y.square().mean(), optimizer=torch.optim.SGD)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
one = sys.argv[1] == "one"
model = seeded_model(w)
# The setting is for these calls alone: another model in the process is cut as ever.
called = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)  # one layer has 1.4 MiB
step = Step(w, model, Plan(passes=("sdpa",), exchange=Exchange(one_graph=one)), pick("cpu"), called=called)
step(w.inputs(0))
alone = seeded_model(w)
Step(w, alone, Plan(), pick("cpu"))(w.inputs(0))
for mine, right in zip(model.parameters(), alone.parameters()):
    torch.testing.assert_close(mine.grad, right.grad)
print("cut" if step.backend.graphs > 2 else step.backend.graphs, step.applied().get("one graph under DDP"), torch._dynamo.config.optimize_ddp)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("plan", "said"), [("one", "2 True True"), ("cut", "cut None True")])
def test_the_model_is_one_graph_beside_that_of_its_loss(plan: str, said: str) -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT, plan], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == said, ran.stderr
