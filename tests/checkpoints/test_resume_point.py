"""Which checkpoint a run starts at, by `resume` and by what its directory holds."""

import shutil

import pytest

from pggan.checkpoints.resume import find_resume_point
from pggan.core.errors import UserError


@pytest.fixture
def own(finished_run, tmp_path):
    """The directory of a run with checkpoints at 128 and 160 images."""
    shutil.copytree(finished_run / "checkpoints", tmp_path / "own" / "checkpoints")
    return tmp_path / "own"


@pytest.mark.parametrize("there", [True, False])
def test_a_run_with_checkpoints_of_its_own_no_longer_needs_the_one_that_it_began_at(own, tmp_path, there, finished_run):
    began = finished_run / "checkpoints" / "000000128" if there else tmp_path / "gone" / "checkpoints" / "000000128"
    checkpoint, notes = find_resume_point(str(began), own)
    assert checkpoint.directory == own / "checkpoints" / "000000160"
    assert notes == [f"Not starting from resume={began} again: this run has checkpoints of its own."]


def test_a_run_goes_on_at_its_newest_checkpoint_alone(own):
    for resume in (own, own / "checkpoints" / "000000160"):
        assert find_resume_point(str(resume), own)[0].images == 160
    with pytest.raises(UserError, match="000000128 is not the newest checkpoint"):
        find_resume_point(str(own / "checkpoints" / "000000128"), own)
    with pytest.raises(UserError, match="000000064 has no checkpoint"):
        find_resume_point(str(own / "checkpoints" / "000000064"), own)


def test_a_new_run_begins_at_the_checkpoint_of_another_one_or_misses_it(own, tmp_path):
    checkpoint, _ = find_resume_point(str(own / "checkpoints" / "000000128"), tmp_path / "new")
    assert checkpoint.images == 128
    with pytest.raises(UserError, match="resume=gone has no checkpoint"):
        find_resume_point("gone", tmp_path / "new")
