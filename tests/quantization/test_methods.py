"""The registry of methods: what it holds, what each needs, and that a scheme is one file."""

from __future__ import annotations

import textwrap

import pytest

from aloft.cli.schemes import schemes as command
from aloft.ops.registry import standard
from aloft.quantization import registry, schemes


def test_every_method_names_its_operators(capsys):
    names = {scheme for scheme, kind in registry.methods() if kind == registry.LINEAR}
    assert names == {"w8a8-static", "w8a8-dynamic", "w8a8-dynamic-asymmetric", "w8a16", "w4a16", "w4a8", "w4a4"}
    tables = {scheme for scheme, kind in registry.methods() if kind == registry.EMBEDDING}
    assert tables == {"w8a8-dynamic", "w8a16", "w4a16", "w4a8"}
    assert {scheme for scheme, kind in registry.methods() if kind == registry.KV_CACHE} == {"kv-int8"}
    assert command() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(len(cls.operators) for cls in registry.methods().values())
    for (scheme, kind), cls in registry.methods().items():
        assert cls.operators and any(line.startswith(f"{scheme} ({kind}) ") for line in lines)
        assert all(any(operator in line and line.endswith(" here") for line in lines) for operator in cls.operators)
    assert set(registry.operators()) <= {schema for each in standard().all() for schema in each.schemas}


def test_a_scheme_is_one_file(tmp_path, monkeypatch, capsys):
    """A module in the folder is a scheme, without a change elsewhere; what it lacks is shown."""
    (tmp_path / "w2a2.py").write_text(
        textwrap.dedent("""
            from aloft.quantization.linear import LinearScheme
            from aloft.quantization.registry import LINEAR, register

            @register("w2a2", LINEAR)
            class Two(LinearScheme):
                operators = ("npu::npu_two_bits",)
        """)
    )
    before = dict(registry._methods)
    monkeypatch.setattr(schemes, "__path__", [*schemes.__path__, str(tmp_path)])
    registry.methods.cache_clear()
    try:
        assert registry.method("w2a2", registry.LINEAR).operators == ("npu::npu_two_bits",)
        assert command() == 1
        said = capsys.readouterr().out
        assert any(line.split() == ["w2a2", "(linear)", "npu::npu_two_bits", "missing"] for line in said.splitlines())
    finally:
        registry._methods.clear()
        registry._methods.update(before)
        registry.methods.cache_clear()
    with pytest.raises(ValueError, match=r"a\.proj: aloft has no w2a2 quantization of linear layers; there are: w4a16"):
        registry.method("w2a2", registry.LINEAR, "a.proj")
