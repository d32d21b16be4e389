"""Train several small models of one architecture as one stacked model, with torch.func.vmap.

A single small model does not use a GPU fully. Here, the parameters of n models of the same architecture are
stacked to tensors (n, ...). One forward and backward pass computes the gradients of all models. Each model
has its own gradient clipping, AdamW state and random numbers, as if it were trained alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, func, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.data.packed_tensors import tensors_in
from regard.errors import ArgumentError, DataError, RegardError, message
from regard.fast.twins import Twins
from regard.training.optimizer import build_optimizer
from regard.training.task import Loss

__all__ = ["LossOf", "StackedSeeds"]

LossOf = Callable[[nn.Module, Any], Loss]


class StackedSeeds:
    """Train n models of one architecture at once, each as if it were trained alone, up to rounding.

    models: n models on one device. Their parameters have the same names and shapes. For example, the models
        were initialised with different seeds.
    beta2, weight_decay: options of AdamW, see build_optimizer().

    vmap must support the forward pass of the models. It supports all models of this library: the twin of
    recurrent layers runs step by step with plain matrix products, because vmap does not support the recurrent
    layers of torch. So with REGARD_FAST=0, recurrent models cannot be stacked. Parameters that the loss does
    not use have the gradient 0, not None, so AdamW applies weight decay to them.

    Random numbers may come from dropout, torch.rand(), torch.randn() and hard attention (REINFORCE too, with
    the baseline "none"). Any other random function raises an error. On a CPU, each model gets the same random
    numbers as if it were trained alone, with one exception. The attention of a single model may use another
    backend than the attention of stacked models. Then the dropout masks of attention weights, and all dropout
    masks after them, are different samples from the same distribution.

    >>> from regard.data.batch import Batch
    >>> from regard.models import build_model
    >>> from regard.training.losses import cross_entropy
    >>> batch = Batch.collate([[4, 5], [6]], [[4], [5, 6]])
    >>> models = [build_model("luong", 9, 7, width=8) for seed in range(3)]
    >>> stacked = StackedSeeds(models)
    >>> def loss(model, batch):
    ...     total, plain = cross_entropy(model(batch), batch.labels)
    ...     return Loss(total, {"loss": plain})
    >>> losses = stacked.add_gradients(loss, [batch], seeds=[1, 2, 3], factor=1 / 5)
    >>> losses.total.shape, stacked.clip(1.0).shape
    (torch.Size([3]), torch.Size([3]))
    >>> stacked.step(rate=0.001)
    >>> models = stacked.unstacked()
    """

    def __init__(self, models: Sequence[nn.Module], *, beta2: float = 0.98, weight_decay: float = 0.0):
        _check_equal(models)
        self.models = list(models)
        self._template = _Objective(self.models[0])
        parameters, self._buffers = func.stack_module_state([_Objective(model) for model in self.models])
        self.parameters: dict[str, nn.Parameter] = {
            name: nn.Parameter(stacked.detach(), self._template.get_parameter(name).requires_grad)
            for name, stacked in parameters.items()
        }
        self._places = _places(self._template)
        # Weight decay depends on the number of dimensions of each parameter, and stacking adds a dimension.
        # So the optimizer is built for one model. Then each parameter is replaced by the stacked parameter.
        self.optimizer = build_optimizer(self.models[0], beta2=beta2, weight_decay=weight_decay)
        by_parameter = {parameter: name for name, parameter in self._template.named_parameters()}
        for group in self.optimizer.param_groups:
            group["params"] = [self.parameters[by_parameter[each]] for each in group["params"]]

    def __len__(self) -> int:
        return len(self.models)

    def add_gradients(
        self, loss: LossOf, batches: Sequence[Any], *, seeds: Sequence[int], factor: float | Tensor = 1.0
    ) -> Loss:
        """Add the gradients of factor * loss to the stacked parameters; return the losses of the n models.

        Each tensor of the returned Loss has one value for each model, (n,).

        loss: a function of (model, batch) that returns a Loss, such as the loss of a task.
        batches: one batch for all models, or one batch for each model, with tensors of the same shapes.
        seeds: for each model, the random seed of this call. The model gets the same random numbers as if it
            were called alone after torch.manual_seed(seed).
        factor: one number for all models, or a tensor (n,) with one number for each model.
        """
        gradients, losses = self.gradients(loss, batches, seeds=seeds, factor=factor)
        for name, gradient in gradients.items():
            parameter = self.parameters[f"model.{name}"]
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return losses

    def gradients(
        self,
        loss: LossOf,
        batches: Sequence[Any],
        *,
        seeds: Sequence[int] | None,
        factor: float | Tensor = 1.0,
        rows: Sequence[int] | None = None,
        sizes: Sequence[Mapping[int, int]] | None = None,
    ) -> tuple[dict[str, Tensor], Loss]:
        """Return the gradients of factor * loss by parameter name, each (r, ...), and the losses, each (r,).

        loss, batches, seeds, factor: see add_gradients(), for r models. If seeds is None, the loss must not
            use random numbers.
        rows: the indices of the r models in `models`. Default: all models.
        sizes: for each batch, a dict such as {24: 21}: dimensions of size 21 were padded to 24. If a tensor
            of random numbers has a dimension of size 24, only the first 21 elements matter. They are
            generated with the size 21, so that they are the same as without padding. The padding gets other
            random numbers.
        """
        device = next(iter(self.parameters.values())).device
        count = len(self) if rows is None else len(rows)
        self._check_call(batches, seeds, count)
        stacked = {name: each.detach() for name, each in self.parameters.items()} | self._buffers
        if rows is not None and list(rows) != list(range(len(self))):
            index = torch.tensor(rows, device=device)
            stacked = {name: each.index_select(0, index) for name, each in stacked.items()}
        trained = {name: stacked[name] for name, each in self.parameters.items() if each.requires_grad}
        fixed = {name: each for name, each in stacked.items() if name not in trained}
        own = list(zip(*map(tensors_in, batches), strict=True)) if len(batches) > 1 else []
        factors = torch.as_tensor(factor, device=device).expand(count)
        self._template.train(self.models[0].training)

        def of_one(
            parameters: dict[str, Tensor], rest: dict[str, Tensor], tensors: list[Tensor], factor: Tensor
        ) -> tuple[Tensor, Loss]:
            batch = _with_tensors(batches[0], iter(tensors)) if tensors else batches[0]
            swapped = {place: {**parameters, **rest}[name] for place, name in self._places.items()}
            result = func.functional_call(self._template, swapped, (loss, batch), tie_weights=False)
            return result.total * factor, Loss(*result)

        arguments = trained, fixed, [torch.stack(each) for each in own], factors
        try:
            random = nullcontext() if seeds is None else _OwnRandom(seeds, device, sizes)
            with random, _quiet(), Twins(self._template.model):
                run = func.vmap(func.grad(of_one, has_aux=True), randomness="error")
                gradients, losses = run(*arguments)
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
            problem = f"{type(self.models[0]).__name__} cannot run in torch.func.vmap: {first}"
            raise RegardError(message("StackedSeeds", problem, hint="train the seeds one by one")) from error
        # The fused AdamW reads memory in order, whatever the strides are, so gradients must be contiguous.
        named = {name.removeprefix("model."): each.contiguous() for name, each in gradients.items()}
        shown = {name: each.detach() for name, each in losses.shown.items()}
        return named, Loss(losses.total.detach(), shown, tuple(each.detach() for each in losses.state))

    def _check_call(self, batches: Sequence[Any], seeds: Sequence[int] | None, count: int) -> None:
        problem = hint = ""
        if seeds is not None and len(seeds) != count:
            problem = f"{len(seeds)} seeds for {count} models"
        elif len(batches) not in (1, count):
            problem, hint = (
                f"{len(batches)} batches for {count} models",
                "pass one batch for all models, or one for each",
            )
        elif len({tuple(each.shape for each in tensors_in(batch)) for batch in batches}) > 1:
            problem, hint = "the batches have tensors of different shapes", "pad them to the same lengths"
        if problem:
            raise ArgumentError(message("StackedSeeds.add_gradients()", problem, hint=hint))

    def clip(self, limit: float = math.inf) -> Tensor:
        """Clip the gradients: scale the gradient of each of the n models to a norm of at most `limit`.

        Returns the norms before scaling, (n,), as torch.nn.utils.clip_grad_norm_ does for one model.
        """
        gradients = [each.grad for each in self.parameters.values() if each.grad is not None]
        each_norm = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
        norms = torch.linalg.vector_norm(torch.stack(each_norm), dim=0)
        scale = (limit / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype).view(-1, *(1 for _ in gradient.shape[1:])))
        return norms

    def step(self, rate: float) -> None:
        """Update the parameters of all models with AdamW (learning rate `rate`), and reset the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def share(self) -> None:
        """Make each parameter of each model a view of its part of the stacked parameter.

        After this, an update of a model also changes the stacked parameter, and the other way round. So each
        model can have its own optimizer, and no copies are needed after each step.
        """
        for number, model in enumerate(self.models):
            for name, parameter in _Objective(model).named_parameters():
                parameter.data = self.parameters[name].data[number]

    @torch.no_grad()
    def unstacked(self) -> list[nn.Module]:
        """Copy the stacked parameters to the n single models that were stacked, and return these models."""
        for number, model in enumerate(self.models):
            for name, parameter in _Objective(model).named_parameters():
                parameter.copy_(self.parameters[name][number])
        return self.models

    def tensors(self) -> dict[str, Tensor]:
        """Return the stacked parameters and the optimizer state as a dict from names to tensors, for load().

        The state of the parameter "target.weight" has names such as "target.weight/exp_avg".
        """
        named = {name.removeprefix("model."): each for name, each in self.parameters.items()}
        states = {
            f"{name}/{kind}": value
            for name, each in named.items()
            for kind, value in self.optimizer.state[each].items()
        }
        return {name: each.detach() for name, each in named.items()} | states

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], place: str = "StackedSeeds.load()") -> None:
        """Set the parameters and the optimizer state to `tensors`, the result of tensors() for equal models.

        place: for error messages: the path of the file with the tensors.
        """
        named = {name.removeprefix("model."): each for name, each in self.parameters.items()}
        if missing := [name for name in named if name not in tensors]:
            raise DataError(message(place, f"{missing[0]} is missing"))
        for key, value in tensors.items():
            name, _, kind = key.rpartition("/") if "/" in key else (key, "", "")
            if name not in named or (kind != "step" and value.shape != named[name].shape):
                problem = f"{key} of shape {tuple(value.shape)} does not match {len(self)} models"
                raise DataError(message(place, problem))
            if kind:
                self.optimizer.state[named[name]][kind] = value.to(named[name].device, copy=True)
            else:
                named[name].copy_(value)


class _Objective(nn.Module):
    """A module whose forward() returns the loss of its model.

    torch.func.functional_call() can call a module with other parameters. So the loss must be the result of a
    module, if it is to be computed with other parameters.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, loss: LossOf, batch: Any) -> Loss:
        return loss(self.model, batch)


class _OwnRandom(TorchFunctionMode):
    """Inside this context, each model in vmap gets the random numbers that it would get if trained alone.

    vmap calls a random function once for all models. This mode replaces this call by one call for each model,
    outside of vmap and with the generator state of the model. Then it stacks the results.

    seeds: the random seed of each model.
    sizes: for each model, the sizes before padding, by the size after padding. See StackedSeeds.gradients().
    """

    def __init__(
        self, seeds: Sequence[int], device: torch.device, sizes: Sequence[Mapping[int, int]] | None = None
    ):
        super().__init__()
        self._sizes = sizes or [{} for _ in seeds]
        self._states = []
        self._cuda = device.type == "cuda"
        with torch.random.fork_rng([device] if self._cuda else []):
            for seed in seeds:
                torch.manual_seed(seed)
                self._states.append(self._state())

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.dropout:
            return self._dropout(*args, **kwargs)
        if function is Tensor.exponential_ and kwargs.get("generator") is None:
            return self._drawn(args[0], lambda like: like.exponential_(*args[1:]))
        if function in (torch.rand, torch.randn) and kwargs.get("generator") is None:
            return self._drawn(torch.empty(*args, **kwargs), lambda like: function(like.shape, **kwargs))
        return function(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        return x * self._drawn(x, lambda like: functional.dropout(like.fill_(1.0), p))

    def _drawn(self, like: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """Generate random numbers of the shape of `like` for each model, each with its own generator state.

        draw: a function that gets an empty tensor, and returns random numbers of its shape and dtype.

        Returns a tensor with the numbers of all models. vmap treats it as batched over the models. As in
        torch, the numbers are generated in the memory order of `like`, which may be transposed.
        """
        (level,) = (
            each.level()
            for each in torch._C._functorch.get_interpreter_stack()
            if each.key() == torch._C._functorch.TransformType.Vmap
        )
        order = sorted(range(like.dim()), key=lambda dim: -like.stride()[dim])
        back = [order.index(dim) for dim in range(like.dim())]
        shape, dtype, device = tuple(like.shape[dim] for dim in order), like.dtype, like.device
        with temporarily_clear_interpreter_stack(), torch.no_grad():
            draws = []
            with torch.random.fork_rng([device] if self._cuda else []):
                for number, state in enumerate(self._states):
                    self._set_state(state)
                    own = tuple(self._sizes[number].get(size, size) for size in shape)
                    drawn = draw(torch.empty(own, dtype=dtype, device=device))
                    self._states[number] = self._state()
                    if own != shape:
                        padded = draw(torch.empty(shape, dtype=dtype, device=device))
                        padded[tuple(slice(size) for size in own)] = drawn
                        drawn = padded
                    draws.append(drawn.permute(back))
            stacked = torch.stack(draws)
        return torch._C._functorch._add_batch_dim(stacked, 0, level)

    def _state(self) -> Tensor:
        return torch.cuda.get_rng_state() if self._cuda else torch.get_rng_state()

    def _set_state(self, state: Tensor) -> None:
        if self._cuda:
            torch.cuda.set_rng_state(state)
        else:
            torch.set_rng_state(state)


def _with_tensors(batch: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a copy of the batch with other tensors, given in the order in which tensors_in() yields them."""
    if isinstance(batch, Tensor):
        return next(tensors)
    if isinstance(batch, tuple):
        replaced = [_with_tensors(each, tensors) for each in batch]
        return type(batch)(*replaced) if hasattr(batch, "_fields") else tuple(replaced)
    if is_dataclass(batch) and not isinstance(batch, type):
        names = [each.name for each in fields(batch)]
        return replace(batch, **{name: _with_tensors(getattr(batch, name), tensors) for name in names})
    return batch


def _places(module: nn.Module) -> dict[str, str]:
    """Return the paths at which functional_call() replaces parameters and buffers, with their names.

    A path is the name of the module and of the attribute, such as "decoder.weight". The name is the name in
    named_parameters() or named_buffers(). A tied parameter has one name, but several paths. All of them are
    in the result. But if a whole module is shared, only the first path of each of its attributes is in the
    result: functional_call() restores wrong tensors if it replaces the same attribute of one module twice.
    """
    names: dict[int, str] = {id(tensor): name for name, tensor in module.named_parameters()}
    names |= {id(tensor): name for name, tensor in module.named_buffers()}
    places, seen = {}, set()
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for place, tensor in every:
        path, _, attribute = place.rpartition(".")
        key = id(module.get_submodule(path)), attribute
        if key not in seen:
            seen.add(key)
            places[place] = names[id(tensor)]
    return places


def _check_equal(models: Sequence[nn.Module]) -> None:
    if not models:
        raise ArgumentError(message("StackedSeeds()", "there are no models", expected="one or more"))
    shapes = [
        {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in model.state_dict().items()}
        for model in models
    ]
    for number, (model, own) in enumerate(zip(models, shapes, strict=True)):
        differ = sorted(name for name in {*own, *shapes[0]} if own.get(name) != shapes[0].get(name))
        if differ or type(model) is not type(models[0]) or model.training != models[0].training:
            problem = f"model {number} differs from model 0" + (f" in {differ[0]}" if differ else "")
            expected = "models of one class, all in train or all in eval mode, with equal shapes and dtypes"
            raise ArgumentError(message("StackedSeeds()", problem, expected=expected))


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore the warning of vmap that a kernel has no batching rule and therefore runs once for each seed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield
