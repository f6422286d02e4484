"""The package as a user gets it: cheap to import, whole when installed, its names where they are promised."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import olmes_monitor

ROOT = Path(__file__).parent.parent


def python(code, **settings):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **settings)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("name", ["olmes_monitor", "olmes_monitor.suite", "olmes_monitor.measure", "olmes_monitor.cli"])
def test_importing_it_loads_nothing_heavy(name):
    heavy = ("torch", "transformers", "lightning", "wandb", "datasets", "pyarrow", "pandas", "matplotlib")
    loaded = python(f"import sys, {name}; print(*[m for m in {heavy} if m in sys.modules])")
    assert loaded == ""


def test_every_public_name_is_there_and_listed():
    assert set(olmes_monitor.__all__) == {*olmes_monitor._HOME, "__version__"}
    for name in olmes_monitor.__all__:
        assert getattr(olmes_monitor, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Monitr'"):
        olmes_monitor.Monitr  # noqa: B018


def test_the_measures_need_no_torch():
    assert python("import sys, olmes_monitor.measure.summary; print('torch' in sys.modules)") == "False"


@pytest.mark.slow
def test_a_plain_install_has_the_callback_the_command_and_the_types(tmp_path):
    """The wheel of `pip install .`, unpacked elsewhere: callbacks lies inside the package, none at the top."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=280)
    (wheel,) = tmp_path.glob("olmes_monitor-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "olmes_monitor/callbacks/callback.py" in names
    assert "olmes_monitor/py.typed" in names
    assert not [name for name in names if name.startswith(("callbacks/", "tests/", "examples/"))]
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "olmes-monitor = olmes_monitor.cli:main" in (tmp_path / "site" / entry).read_text()
    # -I: neither this folder nor the editable install may answer instead.
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
    code += "from olmes_monitor import OLMESCallback; import olmes_monitor; print(olmes_monitor.__file__)"
    found = python(code, cwd=tmp_path, env={**os.environ, "PYTHONSAFEPATH": "1"})
    assert found.startswith(str(tmp_path / "site"))


def test_the_packages_in_pyproject_are_those_on_disk():
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {str(p.parent.relative_to(ROOT)).replace("/", ".") for p in (ROOT / "olmes_monitor").rglob("__init__.py")}
    assert listed == found | {"olmes_monitor.callbacks"}
