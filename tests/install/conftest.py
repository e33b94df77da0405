"""One compilation serves every form of installation: each is built from the unpacked sdist, in one build folder."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from installing import REPOSITORY, Environment, Sources, git_files, run


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every package installed here but aloft, as links; no .pth file in it is read."""
    folder = tmp_path_factory.mktemp("base")
    for site in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for entry in site.iterdir():
            if "aloft" in entry.name or entry.suffix == ".pth" or (folder / entry.name).exists():
                continue
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def environment(tmp_path: Path, base: Path) -> Environment:
    """A fresh environment, aloft not installed."""
    made = run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    result = Environment(tmp_path / "venv")
    (result.site / "zz_base.pth").write_text(f"{base}\n")
    return result


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The sdist of the files git knows (and those it would add), made and unpacked."""
    root = tmp_path_factory.mktemp("sources")
    tree = root / "tree"
    for path in git_files():
        target = tree / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    program = "from scikit_build_core.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
    made = run([sys.executable, "-c", program, root], cwd=tree, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert made.returncode == 0, made.stderr
    (sdist,) = root.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(root / "unpacked", filter="data")
    (folder,) = (root / "unpacked").iterdir()
    return Sources(folder, sdist, root / "build")
