"""Folders in the form of Hugging Face, and the Hub, which a stand-in plays."""

import json
import shutil
from dataclasses import replace

import huggingface_hub
import numpy as np
import pytest
import yaml
from PIL import Image

import pggan
from pggan.checkpoints.generator_file import save_generator
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.interop.export.hugging_face import from_pretrained, push_to_hub


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluation") / "evaluation.json"
    stage = {"images": 4000, "resolution": 16, "alpha": 0.25}
    others = [{**stage, **other, "metrics": {"kid": 9.0}} for other in ({"images": 8}, {"resolution": 8}, {"alpha": 1})]
    found = [{**stage, "metrics": {"kid": 0.0123, "swd_16": -0.5}}, *others]
    path.write_text(json.dumps({"evaluations": found, "data": {"images": 70000, "path": "faces"}}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory, generator_file, evaluation):
    out = tmp_path_factory.mktemp("folder") / "faces"
    facts = ["license=cc-by-4.0", "data_statement='Drawn by a program: nobody is shown.'", f"evaluation={evaluation}"]
    assert main(["export", f"run={generator_file}", "format=hf", f"out={out}", *facts]) == 0
    return out


def test_a_folder_gives_the_same_images_as_the_run(folder, generator_file):
    original = pggan.load(generator_file, "cpu")
    expected = original.render(original.latents("0-15"))
    for copy in (pggan.load(folder, "cpu"), pggan.from_pretrained(folder, device="cpu")):
        assert (copy.resolution, copy.alpha, copy.images) == (16, 0.25, 4000)
        assert np.array_equal(copy.render(copy.latents("0-15")), expected)
    samples = np.asarray(Image.open(folder / "samples.png"))
    side = samples.shape[0] // 4
    assert np.array_equal(samples[:: side // 16, :: side // 16][16:32, 32:48], expected[6])


def test_the_configuration_is_plain_json(folder):
    about = json.loads((folder / "config.json").read_text())
    assert about["library_name"] == "pggan"
    assert about["architecture"]["resolution"] == about["resolution"] == 16
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "generator.safetensors",
        "samples.png",
    ]


def test_the_card_has_what_a_reader_needs(folder):
    card = (folder / "README.md").read_text()
    front = card.split("---\n")[1]
    assert "license: cc-by-4.0\n" in front
    assert "pipeline_tag: unconditional-image-generation\n" in front
    assert yaml.safe_load(front)["tags"] == ["gan", "progressive-gan"]
    assert "nobody is shown" in card
    assert "| kid | 0.0123 |\n| swd_16 | -0.5 |" in card
    assert "9" not in card.split("## Quality")[1].split("## Training")[0]  # of another checkpoint or stage
    assert "70,000 images" in card
    assert "| images shown in training | 4,000 |" in card
    assert "![Images of seeds 0 to 15](samples.png)" in card


def test_a_card_without_facts_says_so(generator_file, tmp_path):
    out = tmp_path / "faces"
    assert main(["export", f"run={generator_file}", "format=hf", f"out={out}", "resolution=8"]) == 0
    card = (out / "README.md").read_text()
    assert "Not measured." in card
    assert "**Not stated**" in card
    assert pggan.load(out, "cpu").resolution == 8


def test_a_file_states_its_licence_and_its_data_to_the_next_card(folder, tmp_path):
    assert main(["export", f"run={folder}", "format=hf", f"out={tmp_path / 'again'}"]) == 0
    card = (tmp_path / "again" / "README.md").read_text()
    assert "license: cc-by-4.0\n" in card.split("---\n")[1]
    assert "nobody is shown" in card.split("## Training data")[1]
    assert main(["export", f"run={folder}", "format=hf", f"out={tmp_path / 'mine'}", "license=other"]) == 0
    assert "license: other\n" in (tmp_path / "mine" / "README.md").read_text()
    assert json.loads((tmp_path / "mine" / "config.json").read_text())["license"] == "other"


def test_the_card_of_the_generator_that_comes_with_the_package_names_the_artist(tmp_path):
    assert main(["export", "run=pretrained:avatars64", "format=hf", f"out={tmp_path / 'card'}"]) == 0
    card = (tmp_path / "card" / "README.md").read_text()
    assert "license: apache-2.0\n" in card.split("---\n")[1]
    assert '"Toon Head" by Johan Melin' in card.split("## Training data")[1]
    assert "CC BY 4.0" in card


@pytest.mark.parametrize("name", ["mit\ntags: [safe]", "CC BY 4.0", ""])
def test_a_licence_that_is_no_name_is_refused_before_anything_is_written(generator_file, tmp_path, capsys, name):
    arguments = ["format=hf", f"out={tmp_path / 'card'}", f"license={json.dumps(name)}"]
    assert main(["export", f"run={generator_file}", *arguments]) == 2
    assert "license=other" in capsys.readouterr().err
    assert not (tmp_path / "card").exists()


@pytest.mark.parametrize("stated", [{"license": "mit\ntags: x"}, {"license": 3}, {"data_statement": "x" * 20_000}])
def test_a_file_with_an_impossible_statement_is_refused(generator_file, tmp_path, stated):
    loaded = pggan.load(generator_file, "cpu").loaded
    save_generator(replace(loaded, **stated), path := tmp_path / "generator.safetensors")
    with pytest.raises(UserError, match="not a valid generator"):
        pggan.load(path, "cpu")


def test_a_folder_that_holds_something_is_left_alone(generator_file, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    assert main(["export", f"run={generator_file}", "format=hf", f"out={tmp_path}"]) == 2
    assert "exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_file_that_is_no_evaluation_is_refused(generator_file, tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"evaluations": [{"metrics": {"kid": "low"}}]}')
    arguments = ["format=hf", f"out={tmp_path / 'b'}", f"evaluation={tmp_path / 'a.json'}"]
    assert main(["export", f"run={generator_file}", *arguments]) == 2
    assert "not an evaluation" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


class Hub:
    """Repositories in a directory."""

    def __init__(self, root):
        self.root, self.private = root, None

    def create_repo(self, name, *, private, exist_ok):
        assert exist_ok
        self.private = private
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        assert commit_message
        shutil.copytree(folder_path, self.root / repo_id)

    def download(self, name, file, revision=None):
        if not (self.root / name).is_dir():
            raise huggingface_hub.errors.LocalEntryNotFoundError(f"no {name} at {revision}")
        return str(self.root / name / file)


def test_what_is_pushed_can_be_loaded_by_its_name(folder, generator_file, tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    assert push_to_hub(folder, "me/faces") == "https://hub/me/faces"
    assert hub.private is True
    assert from_pretrained("me/faces", device="cpu").resolution == 16
    with pytest.raises(UserError, match="no generator at me/other"):
        from_pretrained("me/other", revision="main", device="cpu")
    arguments = ["format=hf", f"out={tmp_path / 'out'}", "push=me/open", "private=false"]
    assert main(["export", f"run={generator_file}", *arguments]) == 0
    assert hub.private is False
    assert (tmp_path / "me" / "open" / "README.md").read_text().splitlines()[6] == "# me/open"
