"""The program as a user starts it: which command runs, what it prints, how it ends."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pggan.cli.main import guarded, main
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError
from pggan.core.process import __version__
from pggan.data.pyramid import ImagePyramid
from tests.data.images import save

ROOT = Path(__file__).parents[2]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--version"], ["train", "--version"]])
def test_the_version_is_that_of_the_package(arguments, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"pggan {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["modle.fmap_base=5"], ["model.fmap_max=0"]])
def test_the_script_answers_mistakes_without_importing_torch_and_help_without_hydra(arguments):
    code = (
        "import runpy, sys\n"
        "try:\n"
        "    runpy.run_path('train.py', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules, 'omegaconf' in sys.modules)\n"
    )
    result = python("-c", code, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == ("0 False False" if arguments == ["--help"] else "2 False True")


@pytest.mark.slow
def test_threads_spin_for_a_while_only(monkeypatch):
    """OpenMP reads it when torch is loaded, so some of our code has to come before."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    code = "import os, sys, pggan.cli.main; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    assert python("-c", code).stdout == "100000 False\n"


def test_the_module_and_the_script_are_the_same_program():
    for command in (["-m", "pggan", "train"], ["train.py"]):
        result = python(*command, "--help")
        assert result.returncode == 0, result.stderr
        assert "Keys of configs/train.yaml" in result.stdout


def test_a_working_directory_that_was_deleted_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["doctor"]) == EXIT_USER_ERROR
    assert "working directory does not exist" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("localedef") is None, reason="needs localedef")
@pytest.mark.parametrize(("locale", "encoding"), [("en_US", "ISO-8859-1"), ("ja_JP", "EUC-JP")])
def test_names_and_texts_are_utf_8_in_every_locale(tmp_path, locale, encoding):
    """Classes are folders of the names' bytes, and the terminal gets its own encoding, with ? for what it lacks."""
    subprocess.run(["localedef", "-i", locale, "-f", encoding, tmp_path / f"{locale}.{encoding}"], check=False)
    for seed, kind in enumerate(("ä", "é", "ä", "é")):
        save(tmp_path / "photos" / kind / f"{seed}.png", seed)
    variables = {**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": f"{locale}.{encoding}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pggan", "prepare", "source=photos", "dest=sät", "labels=true", "num_workers=1"]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "sät: 4x4 to 16x16".encode(encoding, "replace") in ended.stdout
    assert ImagePyramid(tmp_path / "sät").class_names == ["ä", "é"]
    ended = subprocess.run([*command[:3], "--help"], env=variables, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    if encoding == "EUC-JP":
        command = [*command[:4], "source=\u043d\u0435\u0442".encode(), "dest=x"]
        ended = subprocess.run(command, env=variables, capture_output=True, check=False)
        assert (ended.returncode, b"LC_ALL=C.UTF-8" in ended.stderr) == (2, True)


def test_what_a_command_raises_decides_the_exit_code(capsys):
    def fail(error):
        raise error

    assert guarded(lambda: 3) == 3
    assert guarded(lambda: fail(UserError("It is wrong.", "Correct it."))) == EXIT_USER_ERROR
    assert capsys.readouterr().err == "Error: It is wrong.\n  Correct it.\n"
    assert guarded(lambda: fail(KeyboardInterrupt())) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "Stopped at once.\n"
    assert guarded(lambda: fail(KeyboardInterrupt("All is kept."))) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "Stopped at once. All is kept.\n"
    assert guarded(lambda: fail(OSError(errno.ENOSPC, "No space left", "a.png"))) == EXIT_USER_ERROR
    assert "Error: No space left: 'a.png'.\n  Free disk space there" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: fail(ZeroDivisionError()))
