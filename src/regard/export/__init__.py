"""Export trained models to the formats of other programs: CTranslate2, Hugging Face, ONNX and safetensors.

One file for each target. It has the allow-list of the options that the target can compute, and writes the
weights. The rest is the same for all of them: export.py.
"""

from regard.export.export import TARGETS, Exported, export_run

__all__ = ["TARGETS", "Exported", "export_run"]
