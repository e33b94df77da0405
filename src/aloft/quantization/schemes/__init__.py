"""One module a scheme; ``aloft.quantization.registry`` imports every module of this folder."""
