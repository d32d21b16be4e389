"""FastTuringMachine: a neural Turing machine with all steps in one autograd function."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.dimensions import in_transform
from regard.fast.hooks import is_hooked
from regard.fast.recurrent.tape_steps import MachineSteps, machine_steps
from regard.fast.twin import Twin
from regard.layers.tape_heads import TapeSite
from regard.models.turing_machine import MachineState, NeuralTuringMachine
from regard.sites import scopes_at

__all__ = ["FastTuringMachine"]


class FastTuringMachine(NeuralTuringMachine, Twin):
    """Run all steps of the machine without calls of attention() and read(); see machine_steps()."""

    def run(self, x: Tensor, state: MachineState) -> tuple[Tensor, MachineState]:
        sites = [each for each in self.tape.values() if isinstance(each, TapeSite)]
        seen = any(scopes_at(each.site, each.role) for each in sites)
        if seen or is_hooked(self.heads) or torch.compiler.is_compiling() or in_transform():
            return NeuralTuringMachine.run(self, x, state)
        own = tuple(each[None] for each in state.tensors)
        weights = self.recurrent[None], self.heads.weight.T[None], self.heads.bias[None]
        steps = machine_steps(self.layout, self.input(x)[None], *weights, own)  # type: ignore[arg-type]
        done = MachineSteps(*(each[0] for each in steps))
        logits = self.output(torch.cat((done.hidden, done.reads), -1))
        last = done.hidden[:, -1], done.cell, done.reads[:, -1], done.weights, done.memory
        return logits, MachineState(*last, state.position + x.shape[1])
