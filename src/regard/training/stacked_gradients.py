"""Compute the gradients of several models that differ only in the random seed, with torch.func.vmap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.fast.captured.graphs import Uncaptured, shape_of
from regard.fast.captured.stacked_seeds import StackedGraphs
from regard.training.gradients import coarse_products
from regard.training.loop import Trainer
from regard.training.progress import seed_generators
from regard.training.stacked_seeds import LossOf, StackedSeeds
from regard.training.stacked_updates import StackedUpdates, can_update
from regard.training.step_results import StepDone, StepRequest
from regard.training.task import Loss

__all__ = ["StackedGradients"]


class StackedGradients:
    """Compute the gradients of a training step for several trainers, which differ only in the random seed.

    The models are stacked: one call of torch.func.vmap computes the gradients of all seeds. add() adds the
    gradients to `.grad` of the parameters of each model.

    trainers: the trainer of each seed.
    say: a function that is called once, with the reason, if torch.func.vmap cannot run these models. From
        then on, the gradients of each model are computed separately.
    problem: the reason why the models must not be stacked. "": stack the models.

    Each seed has its own batch. Task.padded() pads the batches to the same shape. If the shape of a batch
    still differs from all other batches, the gradients of its seed are computed separately. Padding does not
    change the random numbers of the tokens, such as dropout masks. So, up to rounding, each model gets the
    same gradients as if it were trained alone.

    add() can also clip the gradients and update the weights of all models at once. For this, all models must
    be stacked, and a step of each seed must have only one batch. For the other conditions, see _updated().
    Otherwise, each Trainer clips the gradients and updates the weights of its model.
    """

    def __init__(
        self,
        trainers: Mapping[int, Trainer],
        say: Callable[[str], None] = lambda text: None,
        problem: str = "",
    ):
        self.trainers, self.say, self.problem = dict(trainers), say, problem
        self._stacked: StackedSeeds | None = None
        self._graphs: StackedGraphs | None = None
        self._seeds: list[int] = []
        self._unused: frozenset[str] = frozenset()
        self._updates: StackedUpdates | None = None
        self._done: dict[int, StepDone] = {}
        self._groups: list[tuple[list[int], dict[str, Tensor], Loss]] = []

    def add(self, requests: Mapping[int, StepRequest]) -> Mapping[int, dict[str, Tensor] | StepDone]:
        """Add the gradients of one training step of each seed to the parameters of its model.

        requests: for each seed, the step that its trainer takes, with the batches.

        Returns a result for each seed: the losses by name, summed over the batches. The last loss is the one
        that is minimised, and its name is "" (see Gradients.add()). If the weights were updated too, the
        result of each seed is a StepDone.
        """
        self._done = {}
        sums: dict[int, dict[str, Tensor]] = {seed: {} for seed in requests}
        for place in range(max(len(request.batches) for request in requests.values())):
            for seed, loss in self._batch(requests, place).items():
                for name, value in (*loss.shown.items(), ("", loss.total)):
                    sums[seed][name] = sums[seed][name] + value if name in sums[seed] else value
        if self._done:
            return self._done
        self._release()  # each trainer updates the weights of its model
        return sums

    def _batch(self, requests: Mapping[int, StepRequest], place: int) -> dict[int, Loss]:
        """Add the gradients of one batch of each seed to the parameters. Return the loss of each seed.

        requests: for each seed, the training step that its trainer takes.
        place: the index of the batch within the step.
        """
        ready, drawn = {}, {}
        for seed, request in requests.items():
            gradients = self.trainers[seed].gradients
            ready[seed], drawn[seed] = gradients.prepared(request.step, place, request.batches[place])
        losses: dict[int, Loss] = {}
        self._groups = []
        if len(requests) > 1 and not self.problem:
            try:
                losses = self._stacked_losses(requests, ready, drawn)
            except Exception as error:  # vmap raises many types of errors for functions it does not support
                self._groups = []
                self._give_up(error)
        for seeds, named, both in self._groups:
            if not self._updated(seeds, requests, named, both):
                self._distribute(seeds, named)
        for seed in requests:
            if seed not in losses:
                seed_generators(drawn[seed], self.trainers[seed].device)
                gradients = self.trainers[seed].gradients
                losses[seed] = gradients.of_one(ready[seed], drawn[seed], requests[seed].tokens)
        for seed, request in requests.items():
            self.trainers[seed].task.keep_state(request.batches[place], losses[seed].state)
        return losses

    def _give_up(self, error: Exception) -> None:
        """Compute the gradients of each seed separately from now on, and log the error as the reason."""
        text = str(getattr(getattr(error, "message", None), "problem", "") or error).strip()
        self.problem = text.splitlines()[0] if text else type(error).__name__
        self._release()
        self._stacked = self._graphs = None
        self.say(f"the seeds are trained one by one, not as one stacked model: {self.problem}")

    def _stacked_losses(
        self, requests: Mapping[int, StepRequest], ready: Mapping[int, Any], drawn: Mapping[int, int]
    ) -> dict[int, Loss]:
        """Compute the gradients of one batch of each seed with stacked models, and store them in _groups.

        Models are stacked if their batches have equal shapes after padding. If the shape of a batch differs
        from all other batches, its seed is left out.

        requests: for each seed, the training step of its trainer.
        ready: for each seed, the batch, as Gradients.prepared() returns it.
        drawn: for each seed of the run, the random seed of this batch, for example for dropout masks.

        Returns the loss of each seed that was not left out.
        """
        stacked = self._stack(list(requests), ready)
        padded, sizes = self._padded(ready)
        groups: dict[Any, list[int]] = {}
        for seed, batch in padded.items():
            groups.setdefault(shape_of(batch, self.trainers[seed].device), []).append(seed)
        losses: dict[int, Loss] = {}
        task, gradients = self.trainers[self._seeds[0]].task, self.trainers[self._seeds[0]].gradients

        def loss(model: nn.Module, batch: Any) -> Loss:
            return task.loss(batch)

        for seeds in (seeds for seeds in groups.values() if len(seeds) > 1):
            factor = torch.tensor([1 / requests[seed].tokens for seed in seeds])
            factor = factor.to(self.trainers[seeds[0]].device)
            with coarse_products(gradients.coarse), gradients.precision():
                batches = [padded[seed] for seed in seeds]
                replayed = self._replayed(loss, batches, factor) if seeds == self._seeds else None
                named, both = replayed or stacked.gradients(
                    loss,
                    batches,
                    seeds=None if task.deterministic else [drawn[seed] for seed in seeds],
                    factor=factor,
                    rows=[self._seeds.index(seed) for seed in seeds],
                    sizes=[sizes[seed] for seed in seeds],
                )
            self._groups.append((seeds, named, both))
            for number, seed in enumerate(seeds):
                shown = {name: each[number] for name, each in both.shown.items()}
                state = tuple(each[number].clone() for each in both.state)
                losses[seed] = Loss(both.total[number], shown, state)
        return losses

    def _updated(
        self, seeds: list[int], requests: Mapping[int, StepRequest], named: Mapping[str, Tensor], loss: Loss
    ) -> bool:
        """Update the weights of all models together, store the results in _done, and return True.

        In five cases, return False without an update: `seeds` does not contain all seeds; a step has several
        batches; the learning rates differ; can_update() returns False; a loss or gradient is NaN or infinite.
        Then each trainer has to update the weights of its model.

        seeds: the seeds of the stacked models, in order.
        requests: for each seed, the training step that its trainer takes.
        named: the gradients of each parameter, (number of seeds, ...), by the name of the parameter.
        loss: the losses of all models.
        """
        rates = {request.rate for request in requests.values()}
        if seeds != self._seeds or len(rates) > 1 or any(len(each.batches) > 1 for each in requests.values()):
            return False
        if self._updates is None:
            trainers = [self.trainers[seed] for seed in seeds]
            if self._stacked is None or not can_update(trainers):
                return False
            used = [name for name in named if name not in self._unused]
            self._updates = StackedUpdates(self._stacked, trainers, used)
        results = self._updates.apply(named, loss, rates.pop())
        self._done = {} if results is None else dict(zip(seeds, results, strict=True))
        return results is not None

    def _release(self) -> None:
        if self._updates is not None:
            self._updates.release()
            self._updates = None

    def _replayed(
        self, loss: LossOf, batches: list[Any], factor: Tensor
    ) -> tuple[dict[str, Tensor], Loss] | None:
        """Compute the gradients of one batch of each seed with a CUDA graph.

        loss, batches, factor: the arguments of StackedSeeds.gradients().

        Returns the gradients by parameter name, and the losses, both stacked over the seeds. Returns None if
        CUDA graphs are disabled, if the loss uses random numbers, or if no graph can be captured.
        """
        trainer = self.trainers[self._seeds[0]]
        if not (trainer.gradients.captures and trainer.task.deterministic and self._stacked is not None):
            return None
        if self._graphs is None:
            self._graphs = StackedGraphs(self._stacked, loss, trainer.device, trainer.task.shapes)
        try:
            return self._graphs.gradients(batches, factor)
        except Uncaptured as error:
            trainer.gradients.captures = False
            self.say(f"CUDA graphs could not be captured, so steps run without them and are slower: {error}")
            return None

    def _distribute(self, seeds: Sequence[int], named: Mapping[str, Tensor]) -> None:
        """Add the gradients of stacked models to `.grad` of the parameters of each model.

        seeds: the seeds of the stacked models, in order.
        named: dict from the name of a parameter to its gradients, (number of seeds, ...).
        """
        for number, seed in enumerate(seeds):
            for name, parameter in self.trainers[seed].model.named_parameters():
                if name in named and name not in self._unused:
                    own = named[name][number]
                    parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)

    def _stack(self, seeds: list[int], ready: Mapping[int, Any]) -> StackedSeeds:
        """Return the models of these seeds as one stacked model, built again only if the seeds have changed.

        ready: for each seed, a batch, to find out which parameters the loss uses.
        """
        if self._stacked is None or self._seeds != seeds:
            self._release()
            self._unused = self._unused_parameters(seeds[0], ready[seeds[0]])
            self._stacked = StackedSeeds([self.trainers[seed].model for seed in seeds])
            self._stacked.share()
            self._seeds, self._graphs = seeds, None
        return self._stacked

    def _unused_parameters(self, seed: int, batch: Any) -> frozenset[str]:
        """Return the names of the parameters that the loss of this batch does not depend on.

        Without vmap, the gradient of such a parameter is None, so AdamW does not apply weight decay to it.
        vmap returns zeros instead, and AdamW would apply weight decay. So these gradients are left out.
        """
        trainer = self.trainers[seed]
        named = {name: each for name, each in trainer.model.named_parameters() if each.requires_grad}
        with trainer.gradients.precision():
            total = trainer.task.loss(batch).total
        gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        return frozenset(name for name, each in zip(named, gradients, strict=True) if each is None)

    def _padded(self, ready: Mapping[int, Any]) -> tuple[dict[int, Any], dict[int, dict[int, int]]]:
        """Pad the batches of all seeds to the same sizes, such as the number of rows and the length.

        Returns two dicts with an entry for each seed. The first has the padded batches. The second has the
        changed sizes, such as {24: 21}: a dimension of size 21 was padded to 24. StackedSeeds.gradients()
        needs these sizes to generate the same random numbers as without padding.
        """
        before = {seed: self.trainers[seed].task.padded_sizes(batch) for seed, batch in ready.items()}
        if len(set(before.values())) == 1 or not all(before.values()):
            return dict(ready), {seed: {} for seed in ready}
        columns = list(zip(*before.values(), strict=True))
        # A padded dimension is recognised by its size, so no other dimension may have the same size.
        taken = _sizes(self.trainers[next(iter(ready))].model)
        taken |= {column[0] for column in columns if len(set(column)) == 1}
        target: list[int] = []
        for column in columns:
            size = max(column)
            while len(set(column)) > 1 and size in taken:
                size += 1
            taken.add(size)
            target.append(size)
        padded = {
            seed: self.trainers[seed].task.padded(batch, tuple(target)) for seed, batch in ready.items()
        }
        pairs = {seed: zip(target, own, strict=True) for seed, own in before.items()}
        return padded, {seed: {new: old for new, old in each if new != old} for seed, each in pairs.items()}


def _sizes(model: nn.Module) -> set[int]:
    """Return the sizes to which no batch may be padded, because the model has dimensions of these sizes.

    A padded dimension is recognised by its size, so no other dimension may have this size. The result
    contains the sizes of all parameters, and all int attributes of modules, such as the number of heads.
    """
    sizes = {size for each in model.parameters() for size in each.shape}
    return sizes | {each for module in model.modules() for each in vars(module).values() if type(each) is int}
