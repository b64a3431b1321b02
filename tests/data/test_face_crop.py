"""The face crop against the published formula, and on drawn faces whose eyes and mouth are known."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pggan.data.face_crop import align_face, face_square
from pggan.data.image_file import BadImage
from tests.data.images import prepared

# An upright face: eyes 40 apart, the mouth 50 below them.
UPRIGHT = np.array([(80.0, 100.0), (120.0, 100.0), (85.0, 150.0), (115.0, 150.0)])


def turned(landmarks, degrees, about=(100.0, 120.0), scale=1.0):
    angle = np.radians(degrees)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return (landmarks - about) @ turn.T + about


def draw(landmarks, size=(260, 260), background=(90, 120, 150)):
    """Red left eye, green right eye, a blue dot at each corner of the mouth."""
    image = Image.new("RGB", size, background)
    pen = ImageDraw.Draw(image)
    for (x, y), colour in zip(landmarks, ["red", "lime", "blue", "blue"], strict=True):
        pen.ellipse([x - 4, y - 4, x + 4, y + 4], fill=colour)
    return np.asarray(image)


def center_of(image, channel):
    """Where a colour is, in shares of the side."""
    others = [other for other in range(3) if other != channel]
    weight = np.clip(image[:, :, channel].astype(float) - image[:, :, others].max(2) - 60, 0, None)
    rows, columns = np.indices(weight.shape) + 0.5
    return np.array([(columns * weight).sum(), (rows * weight).sum()]) / weight.sum() / len(image)


def test_the_square_is_that_of_the_published_script():
    """The same numbers, written as FFHQ's own script computes them."""
    random = np.random.default_rng(0)
    for _ in range(50):
        landmarks = UPRIGHT + random.normal(0, 8, (4, 2))
        left_eye, right_eye, left_mouth, right_mouth = landmarks
        eye_avg = (left_eye + right_eye) * 0.5
        eye_to_eye = right_eye - left_eye
        mouth_avg = (left_mouth + right_mouth) * 0.5
        eye_to_mouth = mouth_avg - eye_avg
        x = eye_to_eye - np.flipud(eye_to_mouth) * [-1, 1]
        x /= np.hypot(*x)
        x *= max(np.hypot(*eye_to_eye) * 2.0, np.hypot(*eye_to_mouth) * 1.8)
        y = np.flipud(x) * [-1, 1]
        c = eye_avg + eye_to_mouth * 0.1
        np.testing.assert_allclose(face_square(landmarks), np.stack([c - x - y, c - x + y, c + x + y, c + x - y]))


@pytest.mark.parametrize(("degrees", "scale"), [(0, 1.0), (17, 0.6), (180, 1.0)])
def test_eyes_and_mouth_come_to_the_same_places_however_the_face_was_turned(degrees, scale):
    landmarks = turned(UPRIGHT, degrees, scale=scale)
    face = align_face(draw(landmarks), landmarks, 64)
    assert face.shape == (64, 64, 3)
    # In shares of the square's side of 180, from its corner (10, 15).
    np.testing.assert_allclose(center_of(face, 0), [70 / 180, 85 / 180], atol=0.015)
    np.testing.assert_allclose(center_of(face, 1), [110 / 180, 85 / 180], atol=0.015)
    np.testing.assert_allclose(center_of(face, 2), [90 / 180, 135 / 180], atol=0.015)


def test_a_photograph_much_larger_than_needed_gives_the_same_face():
    small = align_face(draw(UPRIGHT), UPRIGHT, 16)
    enlarged = np.asarray(Image.fromarray(draw(UPRIGHT)).resize((2080, 2080), Image.Resampling.NEAREST))
    difference = align_face(enlarged, 8 * UPRIGHT, 16).astype(int) - small
    assert np.abs(difference).mean() < 4


def test_a_face_at_the_edge_is_filled_up_with_its_background_blurred_from_a_tenth_of_its_side_on():
    near = UPRIGHT - (50, 60)
    face = align_face(draw(near, size=(200, 200)), near, 32)
    np.testing.assert_allclose(face[0, 0], [90, 120, 150], atol=8)
    np.testing.assert_allclose(center_of(face, 1), [110 / 180, 85 / 180], atol=0.02)
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    face = align_face(noise, near, 128)  # 45 pixels of 180 are above the photograph
    assert face[40:, 40:].std() > 30
    assert face[14:18, 50:].std() < 8  # 20 to 25 pixels above it


def test_faces_are_prepared_and_images_without_landmarks_are_left_out(tmp_path):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    listed = {}
    for number, degrees in enumerate((0, 20, -40)):
        landmarks = turned(UPRIGHT, degrees)
        Image.fromarray(draw(landmarks)).save(tmp_path / "photos" / "deep" / f"{number}.png")
        listed[f"deep/{number}.png"] = landmarks.tolist()
    listed["nobody.png"] = None
    Image.fromarray(draw(UPRIGHT)).save(tmp_path / "photos" / "nobody.png")
    (tmp_path / "faces.json").write_text(json.dumps(listed))
    landmarks = str(tmp_path / "faces.json")
    pyramid = prepared(tmp_path / "photos", tmp_path / "set", crop="faces", landmarks=landmarks)
    assert (pyramid.images, pyramid.resolution) == (3, 128)  # the side is 180
    for image in pyramid.read(128, np.arange(3)):
        np.testing.assert_allclose(center_of(image, 0), [70 / 180, 85 / 180], atol=0.015)
    report = json.loads((tmp_path / "set" / "report.json").read_text())
    assert report["left_out"] == {"no landmarks in the landmarks file": ["nobody.png"]}


def test_small_faces_and_wild_landmarks_make_bad_images():
    far = np.array([(1e6, 0.0), (2e6, 0.0), (1e6, 1e6), (2e6, 1e6)])
    for landmarks, reason in ((UPRIGHT, "smaller than 256x256"), (far, "far outside")):
        with pytest.raises(BadImage, match=reason):
            align_face(draw(UPRIGHT), landmarks, 256)
