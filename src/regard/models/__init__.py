"""Models: encoder and decoder built from the one attention call; base.py is the protocol they share."""

from regard.models.base import Encoded, Model, State

__all__ = ["Encoded", "Model", "State"]
