"""The directory of a run, made for nothing."""

from pggan.run.run_dir import lock_run_dir


def test_a_directory_that_was_made_for_nothing_goes_away_again(tmp_path):
    with lock_run_dir(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with lock_run_dir(tmp_path / "c"):
        (tmp_path / "c" / "train.log").touch()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["train.log"]
