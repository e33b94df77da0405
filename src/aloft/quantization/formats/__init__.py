"""Checkpoint formats: one module each, which reads a description and knows the tensors of a quantized layer."""

MODELSLIM_FILE = "quant_model_description.json"
#: what ``aloft quantize`` tells about a checkpoint it made
REPORT = "aloft-quantize.json"
