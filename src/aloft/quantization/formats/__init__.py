"""Checkpoint formats: one module each, which reads a description and knows the tensors of a quantized layer."""

MODELSLIM_FILE = "quant_model_description.json"
