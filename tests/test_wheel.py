"""The wheel: built, unpacked and imported by itself."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TOUCH = "import paracond as pc; print(*[type(getattr(pc, name)).__name__ for name in pc.__all__]); print(pc.__file__)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_has_the_modules_and_nothing_else(wheel):
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(SOURCE)) for path in (SOURCE / "paracond").rglob("*.py")}
    assert files == modules | {"paracond/py.typed"}
    assert not {name for name in files if {"tests", "research", "data"} & set(Path(name).parts)}


def test_the_wheel_is_imported_by_itself(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)

    def run(*arguments: str) -> str:
        environment = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert Path(run("-c", TOUCH).split()[-1]) == tmp_path / "paracond" / "__init__.py"
    assert run("-m", "paracond", "--version").startswith("paracond ")
    (entry_points,) = tmp_path.glob("*.dist-info/entry_points.txt")
    assert "paracond = paracond.cli.main:main" in entry_points.read_text()
