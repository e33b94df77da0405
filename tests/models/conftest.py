"""Engines of these tests run in this process: they are short-lived, and the mutations reach into them."""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
