"""What a run says about the code that made it."""

import shutil

from pggan.run import run_dir


def test_other_sources_are_other_code_though_commit_and_version_are_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(run_dir, "_commit", lambda: "0123abc+changes")
    here = run_dir.code_in_use()
    assert here.startswith("0123abc+changes with files ")
    assert run_dir.code_in_use() == here
    package = tmp_path / "pggan"
    shutil.copytree(run_dir.__file__.removesuffix("run_dir.py"), package, ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(run_dir, "__file__", str(package / "run_dir.py"))
    assert run_dir.code_in_use() == here
    (package / "step.py").write_text((package / "step.py").read_text() + "# changed\n")
    assert run_dir.code_in_use() != here
