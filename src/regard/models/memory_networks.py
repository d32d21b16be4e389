"""Another name of regard.named_models.memory_networks, for code written for earlier versions."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("regard.named_models.memory_networks")
