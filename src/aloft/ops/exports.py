"""Which aclnn operators our libopapi serves: read from the library's own symbol table."""

from __future__ import annotations

import struct
from pathlib import Path

_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_SUFFIX = "GetWorkspaceSize"


def exported_symbols(library: Path) -> list[str]:
    """Names a 64-bit little-endian ELF shared object defines for others. ValueError if it is not one."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library} is not a 64-bit little-endian ELF file")
    table, entry, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + index * entry) for index in range(count)]
    names = []
    for section in sections:
        if section[1] != _DYNAMIC_SYMBOLS:
            continue
        offset, size, link, step = section[4], section[5], section[6], section[9]
        strings = sections[link][4]
        for at in range(offset, offset + size, step):
            name, info, _, home = struct.unpack_from("<IBBH", data, at)
            if home and info >> 4 in (1, 2):  # defined here, global or weak
                start = strings + name
                names.append(data[start : data.index(b"\0", start)].decode())
    return sorted(names)


def served_operators(library: Path) -> list[str]:
    """The aclnn operators of `library`: those with both of their functions ("aclnnRmsNorm")."""
    names = set(exported_symbols(library))
    found = (name.removesuffix(_SUFFIX) for name in names if name.startswith("aclnn") and name.endswith(_SUFFIX))
    return sorted(name for name in found if name in names)
