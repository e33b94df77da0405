"""Worker and model runner: what vLLM's engine core drives, split by responsibility.

worker (process, device, memory) - model_runner (one step) - requests (persistent batch) - inputs (host staging) -
kv (cache) - sampling, seeds, grammar, logprobs (tokens) - output (results) - threads, parent (the host).
"""
