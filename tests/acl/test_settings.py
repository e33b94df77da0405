"""Environment variables and profiles: what they select, and the errors for wrong ones. No torch involved."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from running import environment

from aloft.runtime.profiles import active_profile, profiles

ASK = """
import ctypes, json
acl = ctypes.CDLL(None)
acl.aclGetRecentErrMsg.restype = acl.aclrtGetSocName.restype = ctypes.c_char_p
count, free, total, cube = ctypes.c_uint32(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int64()
code = acl.aclInit(None)
text = acl.aclGetRecentErrMsg().decode()
if not code:
    acl.aclrtGetDeviceCount(ctypes.byref(count))
    if count.value:
        acl.aclrtSetDevice(0)
        acl.aclrtGetMemInfo(1, ctypes.byref(free), ctypes.byref(total))
        acl.aclGetDeviceCapability(0, 0, ctypes.byref(cube))
physical = ctypes.c_int32(-1)
acl.aclrtGetLogicDevIdByUserDevId(0, ctypes.byref(physical))
print(json.dumps(dict(code=code, text=text, soc=acl.aclrtGetSocName().decode(), devices=count.value, total=total.value,
                      cube=cube.value, physical=physical.value)))
"""


def ask(**settings: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment(**settings), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_defaults() -> None:
    answer = ask()
    assert (answer["code"], answer["soc"], answer["devices"], answer["cube"]) == (0, "Ascend910B3", 8, 20)
    assert 0 < int(str(answer["total"])) <= profiles()["910B3"].hbm_bytes


@pytest.mark.parametrize("key", list(profiles()))
def test_profiles(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(ALOFT_SOC=key.lower())
    assert answer["soc"] == profiles()[key].soc_name and answer["cube"] == profiles()[key].cube_cores
    monkeypatch.setenv("ALOFT_SOC", profiles()[key].soc_name)
    assert active_profile().key == key


def test_every_number_of_a_profile_says_where_it_is_from() -> None:
    for profile in profiles().values():
        numbers = {f for f, v in vars(profile).items() if isinstance(v, int) and f != "dies"}
        assert numbers == set(profile.origin), profile.key
    assert profiles()["910B3"].cube_flop_per_s == pytest.approx(294.9e12, rel=1e-3)


def test_unknown_profile_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALOFT_SOC", "H100")
    with pytest.raises(ValueError, match="910B1 910B2"):
        active_profile()


def test_selection() -> None:
    answer = ask(ALOFT_DEVICES="3", ALOFT_HBM_GIB="0.25")
    assert answer["devices"] == 3 and answer["total"] == 1 << 28
    answer = ask(ALOFT_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="2,3")
    assert answer["devices"] == 2 and answer["physical"] == 2
    assert ask(ALOFT_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="1,9,2")["devices"] == 1  # reading stops at the bad one
    assert ask(ASCEND_RT_VISIBLE_DEVICES="")["devices"] == 0


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("ALOFT_SOC", "910B9", "910B1 910B2 910B3 910B4 910C 310P"),
        ("ALOFT_DEVICES", "0", "1 to 64"),
        ("ALOFT_DEVICES", "two", "1 to 64"),
        ("ALOFT_STREAMS", "fast", "inline async fuzz"),
        ("ALOFT_HBM_GIB", "-1", "65536"),
        ("ALOFT_HBM_GIB", "64GB", "65536"),
        ("ALOFT_FUZZ_SEED", "x", "an integer"),
        ("ALOFT_WAIT_TIMEOUT", "soon", "seconds"),
    ],
)
def test_bad_values_name_the_good_ones(name: str, value: str, valid: str) -> None:
    answer = ask(**{name: value})
    assert answer["code"] == 100000
    assert f"{name}={value}" in str(answer["text"]) and valid in str(answer["text"])


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("ALOFT_SOC", "910B9", "910B1 910B2"),
        ("ALOFT_DEVICES", "99", "1 to 64"),
        ("ALOFT_THREADS", "x", "1 to 1024"),
        ("ALOFT_ISA", "sse", "portable, avx2, avx512 or amx"),
        ("ALOFT_CONTRACT", "lax", "strict, warn, off"),
        ("ALOFT_CONTRACT", "strict", ""),
    ],
)
def test_complaint_finds_what_every_library_refuses(name: str, value: str, valid: str) -> None:
    """Before a device is used, so that a server says it at once."""
    code = "from aloft.runtime import settings; print(settings.complaint())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(**{name: value}), capture_output=True, text=True, timeout=60
    )
    said = done.stdout.strip()
    assert done.returncode == 0, done.stderr
    assert valid in said and name in said if valid else said == ""
