"""Device profiles of the virtual NPU: what each product it can pose as looks like, and where the numbers come from.

The native runtime is built from the same file (`profiles.json`).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aloft.runtime.choice import DEFAULT_SOC


@dataclass(frozen=True)
class Profile:
    """One device. Sizes in bytes, rates per second, clocks in Hz."""

    key: str
    soc_name: str
    hbm_bytes: int
    hbm_bytes_per_s: int
    cube_cores: int
    vector_cores: int
    aicpu_cores: int
    l2_bytes: int
    cube_hz: int
    max_streams: int
    dies: int
    origin: dict[str, str]
    """Field -> where its value comes from: `ini`, `sheet`, `derived`, `field`, `assumed`."""

    @property
    def cube_flop_per_s(self) -> float:
        """Peak of the matrix cores in bfloat16 or float16: 16 x 16 x 16 multiply-adds a cycle and core."""
        return float(self.cube_cores * 8192 * self.cube_hz)


@cache
def profiles() -> dict[str, Profile]:
    """All profiles by key (`910B3`)."""
    rows = json.loads((Path(__file__).parent / "profiles.json").read_text())["profiles"]
    return {row["key"]: Profile(**row) for row in rows}


def active_profile() -> Profile:
    """The profile `ALOFT_SOC` names (by key or SoC name, in any case), 910B3 without it.

    Raises:
        ValueError: there is no such profile.
    """
    wanted = os.environ.get("ALOFT_SOC") or DEFAULT_SOC
    for profile in profiles().values():
        if wanted.upper() in (profile.key.upper(), profile.soc_name.upper()):
            return profile
    raise ValueError(f"ALOFT_SOC={wanted} is not a known device; valid: {' '.join(profiles())}")
