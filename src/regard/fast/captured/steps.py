"""CapturedSteps: whole training steps as CUDA graphs, one graph for each batch shape.

A graph contains the forward and backward pass, gradient clipping, the update of the weights, the moving
average, and the sums of the losses. The host launches the graph and does not wait for its results, which are
read later (StepLate). Several processes exchange their gradients between two graphs: one computes the
gradients, the other updates the weights.

A graph is captured at the first batch of each shape. Before the capture, the step is executed once or twice
with DeviceUpdate.failed = 1, so that it does not change the weights. All results come from replays, also for
the first batch. So a resumed run, which captures its graphs again, computes exactly the same weights.

The learning rate and the other numbers of a step are tensors on the device, so that a graph can contain the
update. If a loss or gradient is NaN or infinite, the update of this step and of all later steps changes
nothing. So the host can check the results several steps later, and still has the weights before the bad step.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import copy_all, tensors_in
from regard.errors import RegardError, Setting, message
from regard.fast.captured import graphs
from regard.fast.captured.graphs import Uncaptured, copied, shape_of
from regard.kernels import by_kernel, is_current
from regard.training.gradients import Average, Gradients, coarse_products
from regard.training.progress import StepLate, StepRequest, seed_generators

__all__ = ["CapturedSteps", "DeviceUpdate", "own_gradients"]

ALIGNED = 64
"""The gradients of all parameters are parts of one tensor. Each part begins at a multiple of this number of
elements, so that kernels can load 16 bytes at once."""

Results = tuple[Tensor, ...]
"""The tensors of a graph that the host reads: the losses, and the state for the next batch."""


@dataclass(eq=False)
class _Graph:
    """A CUDA graph of a training step, or of a part of it.

    replay: a function that runs the graph.
    inputs: the tensors that a batch is copied to before a replay.
    results: the tensors with the results, overwritten by each replay.
    unused: the indices of the parameters that have no gradient.
    """

    replay: Callable[[], None]
    inputs: list[Tensor]
    results: Results
    unused: frozenset[int]


class CapturedSteps:
    """Take whole training steps with CUDA graphs.

    If a step has one batch, one graph contains the whole step. If gradients are accumulated over several
    batches or processes, each batch is one graph, and the update of the weights is another graph.

    gradients: computes the loss of a batch.
    update: updates the weights.
    most: maximum number of batch shapes. If there are more, the least recently used graph is deleted.

    count: number of graphs that were captured.
    """

    def __init__(self, gradients: Gradients, update: DeviceUpdate, most: int):
        self.gradients, self.update, self.count = gradients, update, 0
        self._most, self._device = most, gradients.device
        model = gradients.task.model
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._buffers = list(model.buffers())
        self._factor = torch.zeros((), device=self._device)
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._update_graphs: dict[frozenset[int], _Graph] = {}
        self._pool: Any = None
        self._names: tuple[str, ...] = ()
        # Only for accumulated gradients: the sums of gradients and of losses over the batches of a step. With
        # several processes, all gradients are parts of one tensor, which is exchanged at once.
        self._flat: Tensor | None = None
        self._places: list[Tensor] = []
        self._sums: Tensor | None = None
        self._unused: frozenset[int] = frozenset()
        self._processes, self._agreed = gradients.processes, gradients.processes.world == 1

    def take(self, request: StepRequest) -> StepLate:
        """Take a training step, and return its results, which are read later.

        Raises Uncaptured if a graph cannot be captured. Then the weights have not changed, and the caller can
        take the step without graphs.
        """
        if not is_current(self._device):
            raise Uncaptured(f"{self._device} is not the current device; call torch.cuda.set_device() first")
        self.update.set_step(request.step, request.rate)
        self._factor.fill_(1 / request.tokens)
        whole = len(request.batches) == 1 and self._processes.world == 1
        alone = self._processes.world == 1
        row = self._replay(request, whole) if alone else self._replay_together(request)
        if not whole:
            self._update_graphs[self._unused].replay()
            row = self._update_graphs[self._unused].results[0]
        return StepLate.of(self._names, row)

    def _replay(self, request: StepRequest, whole: bool) -> Tensor:
        """Replay the graphs of the batches of a step, and return the losses of the last batch.

        whole: whether the graph of a batch contains the whole step. If not, the graph that updates the
            weights is captured, but not replayed.
        """
        for place, batch in enumerate(request.batches):
            ready, seed = self.gradients.prepared(request.step, place, batch)
            key = whole, shape_of(ready, self._device)
            if key not in self._graphs:
                while len(self._graphs) >= self._most:
                    self._graphs.popitem(last=False)
                self._graphs[key] = self._graph(ready, self._whole if whole else self._part)
            self._graphs.move_to_end(key)
            graph = self._graphs[key]
            copy_all(graph.inputs, list(tensors_in(ready)))
            seed_generators(seed, self._device)
            graph.replay()
            self._unused = graph.unused & self._unused if place else graph.unused
            row, *state = graph.results
            self.gradients.task.state.keep(batch, tuple(each.clone() for each in state))
        if not whole and self._unused not in self._update_graphs:
            self._update_graphs[self._unused] = self._graph(self._unused, self._update)
        return row

    def _replay_together(self, request: StepRequest) -> Tensor:
        """Replay the graphs of the batches of a step, and sum gradients and losses over all processes.

        In the first step, processes also agree whether all of them can capture graphs. If not, Uncaptured is
        raised in each of them. A failure in a later step is an error, because the other processes do not know
        of it.
        """
        problem: Uncaptured | None = None
        try:
            row = self._replay(request, whole=False)
            if self._unused:
                raise Uncaptured("a parameter has no gradient, and several processes exchange gradients")
        except Uncaptured as error:
            problem = error
        if not self._agreed:
            failed = int(self._processes.sum(torch.tensor([int(problem is not None)])))
            if failed:
                raise problem or Uncaptured("another process cannot capture its steps")
            self._agreed = True
        if problem is not None:
            hint = "use ", Setting("training", "capture", False)
            raise RegardError(message("CUDA graphs", f"step {request.step}: {problem}", hint=hint))
        assert self._flat is not None and self._sums is not None
        self._processes.sum_(self._flat)
        self._processes.sum_(self._sums)
        return row

    def _graph(self, batch: Any, step: Callable[[Any], tuple[Results, frozenset[int]]]) -> _Graph:
        """Capture step(batch). Raise Uncaptured, and delete all graphs, if this fails."""
        try:
            with coarse_products(self.gradients.products):
                graph = self._capture(batch, step)
        except Exception as error:  # the caller takes the step without graphs
            self._graphs.clear()
            self._update_graphs.clear()
            graphs.release_generator(self._device)
            raise Uncaptured.after(error) from error
        self.count += 1
        return graph

    def _capture(self, batch: Any, step: Callable[[Any], tuple[Results, frozenset[int]]]) -> _Graph:
        if self._pool is None:
            self._pool = graphs.new_pool()
        batch = copied(batch)  # the graph reads its inputs from these tensors
        # The warm-up steps change these tensors. DeviceUpdate.failed protects the weights.
        changed = [self.update.failed, *self._buffers, *self._accumulated()]
        before = [each.clone() for each in changed]
        self.update.failed.fill_(1.0)
        try:
            warm_ups = 1 if self.count else graphs.WARM_UPS
            replay, (results, unused) = graphs.recorded(
                lambda: step(batch), self._device, self._pool, warm_ups
            )
        finally:
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
        for tensor in self._accumulated()[len(changed) - 1 - len(self._buffers) :]:
            tensor.zero_()  # the warm-up has created these tensors
        return _Graph(replay, list(tensors_in(batch)), results, unused)

    def _accumulated(self) -> list[Tensor]:
        """Return the sums over the batches of a step. The first warm-up creates them."""
        places = self._places if self._flat is None else [self._flat]
        return [*places, *([] if self._sums is None else [self._sums])]

    def _backward(
        self, batch: Any
    ) -> tuple[list[nn.Parameter], list[Tensor], frozenset[int], list[Tensor], Results]:
        """Compute the gradients of a batch.

        Returns the parameters that have a gradient, their gradients, the indices of the other parameters, the
        losses (the minimised loss comes last), and the state for the next batch.
        """
        loss = self.gradients.loss(batch)
        gradients = torch.autograd.grad(loss.total * self._factor, self._parameters, allow_unused=True)
        unused = frozenset(number for number, each in enumerate(gradients) if each is None)
        parameters = self._used(unused)
        owned = own_gradients(parameters, [each for each in gradients if each is not None])
        if self._names and self._names != tuple(loss.shown):
            raise ValueError(f"the losses are {', '.join(loss.shown)}, not {', '.join(self._names)}")
        self._names = tuple(loss.shown)
        losses = [each.detach() for each in (*loss.shown.values(), loss.total)]
        return parameters, owned, unused, losses, tuple(each.detach() for each in loss.state)

    def _used(self, unused: frozenset[int]) -> list[nn.Parameter]:
        """Return the parameters whose indices are not in `unused`."""
        return [each for number, each in enumerate(self._parameters) if number not in unused]

    def _whole(self, batch: Any) -> tuple[Results, frozenset[int]]:
        """Take a training step with one batch."""
        parameters, gradients, unused, losses, state = self._backward(batch)
        norm, failed = self.update.apply(parameters, gradients, losses[-1])
        return (_stacked([*losses, norm, failed]), *state), unused

    def _part(self, batch: Any) -> tuple[Results, frozenset[int]]:
        """Add the gradients and the losses of one batch of a step to the sums."""
        _, gradients, unused, losses, state = self._backward(batch)
        added = _stacked(losses)
        if not self._places:
            self._places = [torch.zeros_like(each) for each in self._parameters]
            if self._processes.world > 1:
                self._flat, self._places = _joined_zeros(self._parameters)
        if self._sums is None:
            self._sums = torch.zeros_like(added)
        used = [each for number, each in enumerate(self._places) if number not in unused]
        torch._foreach_add_(used, gradients)
        self._sums.add_(added)
        return (added, *state), unused

    def _update(self, unused: frozenset[int]) -> tuple[Results, frozenset[int]]:
        """Update the weights with the summed gradients of a step, and set the sums to zero."""
        assert self._sums is not None
        used = [each for number, each in enumerate(self._places) if number not in unused]
        norm, failed = self.update.apply(self._used(unused), used, self._sums[-1])
        row = _stacked([*self._sums.unbind(), norm, failed])
        torch._foreach_zero_(self._accumulated())
        return (row,), unused


def _joined_zeros(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a tensor of zeros, and parts of it with the sizes and strides of the given tensors.

    Raise Uncaptured if the given tensors have different dtypes.

    >>> [part.shape for part in _joined_zeros([torch.ones(2, 3), torch.ones(5)])[1]]
    [torch.Size([2, 3]), torch.Size([5])]
    """
    dtypes = {each.dtype for each in tensors}
    if len(dtypes) > 1:
        raise Uncaptured(f"parameters have the dtypes {' and '.join(sorted(map(str, dtypes)))}")
    sizes = [-(-each.numel() // ALIGNED) * ALIGNED for each in tensors]
    flat = torch.zeros(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    parts = zip(flat.split(sizes), tensors, strict=True)
    strides = [torch.empty_like(each, device="meta").stride() for each in tensors]
    return flat, [
        part.as_strided(each.shape, stride) for (part, each), stride in zip(parts, strides, strict=True)
    ]


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """Return scalars as one tensor, with the dtype of the first."""
    return torch.stack([each.to(values[0].dtype) for each in values])


class DeviceUpdate:
    """Clip gradients, update the weights with AdamW or SGD, and update the moving average, on the device.

    optimizer: the optimizer from build_optimizer(). Its state is updated, but its step() is not called.
    average: the moving average of the weights, or None.
    device: the device of the weights.
    limit: gradients with a larger norm are scaled down to this norm. inf disables clipping.

    failed: 0.0, and 1.0 from the first step on that has a loss or gradient that is NaN or infinite. While it
        is 1.0, apply() changes neither the weights, nor the optimizer state, nor the moving average.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
        device: torch.device,
        limit: float = math.inf,
    ):
        self.optimizer, self.average, self.limit = optimizer, average, limit
        self.failed = torch.zeros((), device=device)
        # CUDA kernels read a float32 learning rate. On a CPU, float64 gives the bits of a Python float.
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self._rate = torch.zeros((), device=device, dtype=dtype)
        self._average_rate = torch.zeros((), device=device)

    def set_step(self, step: int, rate: float) -> None:
        """Set the number of the next step and its learning rate. This does not wait for the device."""
        self._rate.fill_(rate)
        if self.average is not None:
            self._average_rate.fill_(self.average.rate(step))

    @torch.no_grad()
    def apply(
        self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Update the parameters. Return the norm of the gradients before clipping, and `failed`.

        parameters: the parameters that have a gradient.
        gradients: the gradient of each parameter. They can be scaled in place (see own_gradients()).
        total: the loss of the step, without dimensions.
        """
        by_parameter = dict(zip(map(id, parameters), gradients, strict=True))
        groups = [self._lists(group, by_parameter) for group in self.optimizer.param_groups]
        norm, divisor = self._clip(gradients, total)
        pairs = zip(self.optimizer.param_groups, groups, strict=True)
        halves = [(group, _halves(lists)) for group, lists in pairs]
        with _two_streams(norm.device) as streams:
            for half, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    for group, lists in reversed(halves):  # first the small tensors, which need few blocks
                        if lists[half][0]:
                            self._update_group(group, lists[half], divisor)
        if self.average is not None:
            self.average.update_by(self._average_rate * (1 - self.failed))
        return norm, self.failed

    def _clip(self, gradients: Sequence[Tensor], total: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the norm of the gradients, and update `failed`. Return the norm, and a divisor or None.

        The kernels of the optimizer divide the gradients by the divisor. Other gradients are scaled in place.
        """
        norm = nn.utils.get_total_norm(gradients)
        both = total + norm
        self.failed.logical_or_(both - both)  # NaN, which is true, if one of them is NaN or infinite
        if math.isinf(self.limit):
            return norm, None
        if norm.is_cuda:
            return norm, torch.clamp((norm + 1e-6) / self.limit, min=1.0)
        torch._foreach_mul_(list(gradients), torch.clamp(self.limit / (norm + 1e-6), max=1.0))
        return norm, None

    def _lists(self, group: dict[str, Any], gradients: dict[int, Tensor]) -> tuple[list[Tensor], ...]:
        """Return the weights of a group that have a gradient, the gradients, and the optimizer state."""
        members = [each for each in group["params"] if id(each) in gradients]
        states = [self._state(each, group) for each in members]
        names: tuple[str, ...] = ("exp_avg", "exp_avg_sq", "step")
        if isinstance(self.optimizer, torch.optim.SGD):
            names = ("momentum_buffer",) if group["momentum"] else ()
        moments = [[state[name] for state in states] for name in names]
        return [each.detach() for each in members], [gradients[id(each)] for each in members], *moments

    def _update_group(
        self, group: dict[str, Any], lists: tuple[list[Tensor], ...], divisor: Tensor | None
    ) -> None:
        """Update the weights of a group; its gradients are divided by `divisor`, unless it is None."""
        if isinstance(self.optimizer, torch.optim.SGD):
            weights, gradients, *momentum = lists
            torch._fused_sgd_(
                weights,
                gradients,
                momentum[0] if momentum else [],
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=self._rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                found_inf=self.failed,
                grad_scale=divisor,
            )
            return
        weights, gradients, means, squares, steps = lists
        # With a single tensor instead of a list, _foreach_add_() would read it on the host.
        torch._foreach_add_(steps, [1 - self.failed] * len(steps))
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=self._rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.failed,
            grad_scale=divisor,
        )

    def _state(self, parameter: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the optimizer state of a parameter. Before its first step, the state is created as zeros."""
        state = self.optimizer.state[parameter]
        if not state:
            if isinstance(self.optimizer, torch.optim.SGD):
                if group["momentum"]:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
            else:
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
        return state


def _copied_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of a gradient with the strides of its parameter."""
    result = torch.empty_like(parameter)
    rows = gradient.dim() == 2 and gradient.stride(1) == 1 and result.is_contiguous()
    if not (rows and by_kernel(gradient)):
        return result.copy_(gradient)
    from regard.kernels.training.row_copy import copy_rows

    copy_rows(gradient, result)
    return result


@contextmanager
def _two_streams(device: torch.device) -> Iterator[tuple[torch.cuda.Stream | None, ...]]:
    """Return the current stream of a GPU and a second one, whose kernels are part of the current one outside.

    The kernels of an optimizer for many tensors end with few running blocks. On two streams, this takes 0.85
    of the time. Other devices have no streams, (None, None).
    """
    if device.type != "cuda":
        yield None, None
        return
    main, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(main)
    yield main, side
    main.wait_stream(side)


def _halves(lists: tuple[list[Tensor], ...]) -> list[tuple[list[Tensor], ...]]:
    """Divide the tensors of parallel lists, such as weights and gradients, into two halves of similar size.

    >>> few, many = torch.zeros(1), torch.zeros(9)
    >>> [len(weights) for (weights,) in _halves(([few, many, few],))]
    [1, 2]
    """
    places: tuple[list[int], list[int]] = ([], [])
    sizes = [0, 0]
    for place in sorted(range(len(lists[0])), key=lambda at: -lists[0][at].numel()):
        half = sizes.index(min(sizes))
        places[half].append(place)
        sizes[half] += lists[0][place].numel()
    return [tuple([each[place] for place in half] for each in lists) for half in places]


def own_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Copy those results of torch.autograd.grad() that cannot be changed in place by an optimizer.

    A gradient is copied if its strides differ from the strides of its parameter, or if another parameter has
    the same gradient tensor.

    >>> weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    >>> same = torch.autograd.grad((weights[0] + weights[1]).sum(), weights)
    >>> first, second = own_gradients(weights, same)
    >>> first.data_ptr() == second.data_ptr()
    False
    """
    owned, seen = list[Tensor](), set[int]()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient.stride() != parameter.stride() or gradient.data_ptr() in seen:
            gradient = _copied_like(gradient, parameter)
        seen.add(gradient.data_ptr())
        owned.append(gradient)
    return owned
