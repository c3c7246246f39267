"""What a worker of the climb says of what a workload computes: whether it can be verified, which rungs apply to it, and whether it computes
the same under a recipe."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from msgspec.structs import replace as with_fields

from rung.engine.dynamo import expect_changes, inductor_settings
from rung.engine.step import Step
from rung.errors import UsageError, WorkloadError
from rung.hardware import Device
from rung.hardware.ranks import Ranks
from rung.ladder.answers import Audited, not_loaded
from rung.ladder.loaded import LoadedWorkload
from rung.ladder.survey import survey
from rung.plan import Numerics, Plan
from rung.records.record import plain
from rung.rungs.inductor import names
from rung.verify.audit import audit, called, one_shape_only
from rung.verify.gpu_lock import GpuLock
from rung.verify.over_ranks import verify_over_ranks
from rung.verify.randomness import active, without_dropout
from rung.verify.reference import own_precision
from rung.verify.verify import precompile, verify
from rung.workload import Workload, load, seeded_model
from rung.workload.own_modules import OwnModules


class NotLoaded(Exception):
    """A candidate's code could not be compiled or loaded, which says nothing of what it computes."""


class VerifiedWorkload(LoadedWorkload):
    """A loaded workload that is audited, surveyed and verified. against: another target that is its reference, as `OwnModules` and `load`
    take it: target, options, before, folder, roots, roots_before."""

    _of_reference: OwnModules | None = None

    def survey(self) -> dict[str, Any]:
        """The facts that decide which rungs apply, of a workload that was audited."""
        expect_changes()
        return plain(survey(self.workload, self.device))

    def audit(self, against: dict[str, Any] | None = None, random: bool = True) -> dict[str, Any]:
        """Raises, with a sentence, where the workload itself, or the one that it is verified against, cannot be verified. random: whether its
        forward may draw random numbers, which ranks do each for itself. Returns which parameters are `without_gradient`, why the workload runs on `one_shape` alone, and Inductor's settings here, which take long to
        import."""
        if against:
            without_gradient = audit(self._reference(**against), self.device, random=random)
            return plain(Audited(without_gradient=without_gradient, one_shape=""))
        self.workload, one_shape = probed(self.workload, self.device)
        without_gradient = audit(self.workload, self.device, random=random)
        settings = inductor_settings(names())
        seen = called(self.workload, self.device)
        return plain(
            Audited(
                without_gradient=without_gradient,
                one_shape=one_shape,
                called=seen.elements,
                draws=seen.draws,
                inductor=settings,
            )
        )

    def precisions(self) -> list[Numerics]:
        """Where this recipe is to be verified."""
        return list(self.plan.phases(own_precision(self.workload, seeded_model(self.workload), self.device)))

    def precompile(self) -> None:
        """Compiles what `verify` comes to last in full precision, the step with dropout, so that it finds that in the cache."""
        expect_changes()
        precompile(self.workload, self.plan, self.device)

    def verify(
        self,
        numerics: Numerics,
        against: dict[str, Any] | None = None,
        alone: bool = True,
        backwards: bool = False,
        others: bool = False,
        turns: str = "",
    ) -> dict[str, Any]:
        """Compares this recipe with the reference at one precision. alone: whether no other worker has memory of the device;
        backwards: whether the first shape comes last; others: only what shapes beside the measured one add;
        turns: a file of those who verify on this GPU in turns. Of several ranks each compares what it gives itself.
        Raises NotLoaded where the compiled code was not there to compare.

        against: the reference; its weights are given to this workload.
        """
        expect_changes()  # the same function is built several times over, each at two shapes
        began, gpu_lock = time.perf_counter(), GpuLock(turns, self.device)
        if against:
            found = verify(self._reference(**against), self.plan, self.device, self._twin, precisions=[numerics])
        elif Ranks.here.world > 1:
            found = verify_over_ranks(self._of_one, self.plan, self.device, numerics, alone=alone)
        else:
            found = verify(
                self.workload,
                self.plan,
                self.device,
                precisions=[numerics],
                alone=alone,
                backwards=backwards,
                others=others,
                gpu_lock=gpu_lock,
            )
        if said := next(filter(not_loaded, found.failures), ""):
            raise NotLoaded(said)
        record = with_fields(found.record(), seconds=time.perf_counter() - began)
        return {**plain(record), "memory": gpu_lock.memory()}

    def _reference(self, target: str, options: dict[str, str], **where: Any) -> Workload:
        """Another target's workload, which runs the modules beside its own file though this one may have others of the same names."""
        self._of_reference = self._of_reference or OwnModules(target, **where)
        with self._of_reference.active():
            return self._of_reference.within(load(target, options))

    def _twin(self, reference: torch.nn.Module, plan: Plan) -> Step:
        """This workload's step with the weights of another's model, of the same names and shapes."""
        model = seeded_model(self.workload if active(reference) else without_dropout(self.workload))
        theirs, mine = reference.state_dict(), model.state_dict()
        odd = [k for k in {**theirs, **mine} if k not in mine or k not in theirs or mine[k].shape != theirs[k].shape]
        if odd:
            error = WorkloadError(
                f"the two models cannot be compared: {len(odd)} of their weights differ in name or shape "
                f"({', '.join(odd[:3])}{', ...' if len(odd) > 3 else ''}); make both with the same weights, or leave --verify out to compare times alone."
            )
            error.exit_code = UsageError.exit_code  # neither workload failed
            raise error
        model.load_state_dict(theirs)
        return Step(self.workload, model.to(self.device.torch_name), plan, self.device)


def probed(workload: Workload, device: Device) -> tuple[Workload, str]:
    """The workload, and why it is of one shape alone; empty where others can be derived, or were named."""
    why = one_shape_only(workload, device)
    return (replace(workload, one_shape=True) if why else workload), why
