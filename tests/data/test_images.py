import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tokenloom.data import image_decoding as image_decoding
from tokenloom.data.image_decoding import ImageFormat, convert, decode
from tokenloom.data.images import looks_like_images, read_images
from tokenloom.data.sets.images import idx
from tokenloom.data.unicode import Unreadable
from tokenloom.errors import UserError

RGB = ImageFormat((4, 6), "rgb")
GREY = ImageFormat((4, 6), "gray")


def grays() -> np.ndarray:
    """24 different grays, 4 high and 6 wide: nothing that is turned or mirrored looks the same."""
    return (np.arange(24, dtype=np.uint8) * 10).reshape(4, 6)


def saved(image: Image.Image, kind: str = "PNG", **how: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


# Orientation tag → what has to be done to the upright image to get what such a file stores.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: a.T[::-1],
    7: lambda a: a.T[::-1, ::-1],
    8: lambda a: a.T[:, ::-1],
}


@pytest.mark.parametrize("tag", STORED)
def test_every_orientation_is_brought_upright(tag: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = tag
    stored = Image.fromarray(np.ascontiguousarray(STORED[tag](grays())))
    np.testing.assert_array_equal(decode(saved(stored, exif=exif), GREY), grays()[None])


def kinds() -> dict[str, bytes]:
    gray = Image.fromarray(grays())
    with_alpha = Image.merge("LA", (gray, Image.new("L", gray.size, 255)))
    palette = gray.convert("P")
    wide = Image.fromarray(grays().astype(np.uint16) * 257)
    return {
        "L": saved(gray),
        "LA": saved(with_alpha),
        "RGB": saved(gray.convert("RGB")),
        "RGBA": saved(gray.convert("RGBA")),
        "P": saved(palette),
        "P with alpha": saved(palette, transparency=bytes([255] * 256)),
        "CMYK": saved(gray.convert("RGB").convert("CMYK"), "TIFF"),
        "16 bits": saved(wide),
        "16 bits, TIFF": saved(wide, "TIFF"),
        "0 … 1": saved(Image.fromarray((grays() / np.float32(255)).astype(np.float32)), "TIFF"),
        "GIF": saved(gray, "GIF"),
        "BMP": saved(gray, "BMP"),
        "WebP": saved(gray.convert("RGB"), "WEBP", lossless=True),
        "PGM": saved(gray, "PPM"),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_mode_gives_the_same_image(kind: str) -> None:
    np.testing.assert_array_equal(decode(kinds()[kind], GREY), grays()[None])
    np.testing.assert_array_equal(decode(kinds()[kind], RGB), grays()[None].repeat(3, 0))


def test_one_bit_images_are_black_and_white() -> None:
    bits = grays() > 100
    np.testing.assert_array_equal(decode(saved(Image.fromarray(bits)), GREY)[0], bits * 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_shows_the_background(mode: str) -> None:
    """A red image, half of it half-transparent: 0.5 · red + 0.5 · background."""
    image = Image.new("RGBA", (6, 4), (255, 0, 0, 255))
    image.paste((255, 0, 0, 128), (3, 0, 6, 4))
    raw = saved(image.convert(mode), "TIFF" if mode == "PA" else "PNG")
    seen = decode(raw, ImageFormat((4, 6), "rgb", background_color="#0000ff"))
    solid = 76 if mode == "LA" else 255  # The gray of red.
    assert seen[0, 0, 0] == solid
    assert seen[0, 0, 5] == pytest.approx(solid * 128 / 255, abs=1)
    assert seen[2, 0, 5] == pytest.approx(127 + (38 if mode == "LA" else 0), abs=1)


def test_a_color_that_there_is_not_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(saved(Image.fromarray(grays())))
    with pytest.raises(UserError, match="--background-color whyte"):
        read_images(str(tmp_path), ImageFormat(background_color="whyte"))


def test_other_shapes_are_cut_padded_or_stretched() -> None:
    """Black, white, black, each 2 × 2, side by side."""
    stripes = np.zeros((2, 6), np.uint8)
    stripes[:, 2:4] = 255
    raw = saved(Image.fromarray(stripes))
    assert (decode(raw, ImageFormat((2, 2), "gray")) == 255).all()
    padded = decode(raw, ImageFormat((6, 6), "gray", "pad", background_color="#808080"))[0]
    np.testing.assert_array_equal(padded[2:4], stripes)
    assert (np.delete(padded, (2, 3), axis=0) == 128).all()
    np.testing.assert_array_equal(decode(raw, ImageFormat((1, 6), "gray", "stretch"))[0], stripes[:1])


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(side: int) -> bytes:
    """A PNG of a few bytes whose head asks for side² pixels."""
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def broken() -> dict[str, tuple[bytes, str]]:
    whole = saved(Image.fromarray(grays()).resize((60, 40)), "JPEG")
    return {
        "cut.jpg": (whole[: len(whole) // 2], "damaged"),
        "empty.png": (b"", "empty"),
        "page.jpg": (b"<!DOCTYPE html><html></html>", "web page"),
        "bomb.png": (bomb(20_000), "400 million|--max-megapixels"),
        "huge.png": (bomb(60_000), "--max-megapixels"),
        "noise.png": (bytes(range(256)), "no image of a known format"),
        "cut.png": (saved(Image.fromarray(grays()).resize((60, 40)))[:90], "damaged"),
        "depth.tif": (saved(Image.fromarray(np.full((4, 6), 7.5, np.float32)), "TIFF"), "0 to 1"),
    }


@pytest.mark.parametrize("name", broken())
def test_broken_files_say_why(name: str) -> None:
    raw, words = broken()[name]
    with pytest.raises(Unreadable, match=words):
        decode(raw, GREY)


def test_a_limit_can_be_raised() -> None:
    raw = saved(Image.fromarray(grays()))
    with pytest.raises(Unreadable, match="6 × 4"):
        decode(raw, ImageFormat((4, 6), "gray", max_pixels=23))
    np.testing.assert_array_equal(decode(raw, ImageFormat((4, 6), "gray", max_pixels=24)), grays()[None])


def folder_of(root: Path, **classes: int) -> Path:
    """So many images a class, all different."""
    for label, n in classes.items():
        (root / label).mkdir(parents=True)
        for number in range(n):
            seen = grays() + len(label) * 7 + number
            (root / label / f"{number}.png").write_bytes(saved(Image.fromarray(seen.astype(np.uint8))))
    return root


def test_a_folder_a_class(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "fruit", pear=3, apple=2, none=0)
    (root / ".hidden.png").write_bytes(b"")
    (root / "pear" / "readme.txt").write_text("hello")
    (root / "loose.png").write_bytes(saved(Image.fromarray(grays())))
    data = read_images(str(root))
    assert data.classes == ["apple", "none", "pear"]
    assert data.labels.tolist() == [0, 0, 2, 2, 2]
    assert list(data.ids) == ["apple/0.png", "apple/1.png", "pear/0.png", "pear/1.png", "pear/2.png"]
    assert data.image_format == GREY
    np.testing.assert_array_equal(data.pixels[3, 0], grays() + 29)
    assert data.skipped == [(".hidden.png", "hidden"), ("pear/readme.txt", "no image (.txt)")]
    assert "loose.png" in data.notes[0]
    assert "none" in data.notes[1]
    assert looks_like_images(str(root)) == "a folder of images"


def test_broken_images_are_named_and_left_out_only_when_asked(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "mixed", a=2, b=2, c=2)
    for name, (raw, _) in broken().items():
        (root / "b" / name).write_bytes(raw)
    for whole in ("0.png", "1.png"):
        (root / "b" / whole).unlink()
    with pytest.raises(UserError, match=r"8 of 12 images cannot be read: b/bomb.png \(.*and 3 more.*--skip-corrupt"):
        read_images(str(root))
    data = read_images(str(root), skip_corrupt=True)
    assert sorted(name for name, _ in data.skipped) == sorted(f"b/{name}" for name in broken())
    # The class is empty then, and the numbers of the others stay.
    assert data.labels.tolist() == [0, 0, 2, 2]
    assert any("'b'" in note or ": b" in note for note in data.notes)


def test_all_broken_is_refused_even_when_asked(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"no")
    with pytest.raises(UserError, match="1 of 1 image"):
        read_images(str(tmp_path), skip_corrupt=True)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_table_of_paths_and_labels(tmp_path: Path, ending: str) -> None:
    folder_of(tmp_path, p=3)
    rows = [("p/0.png", "x"), ("p/1.png", "y"), ("p/2.png", "x"), ("p/2.png", "x"), ("p/0.png", "y")]
    if ending == "jsonl":
        lines = [f'{{"file_name": "{path}", "label": "{label}"}}' for path, label in rows]
    else:
        mark = "," if ending == "csv" else "\t"
        lines = [mark.join(row) for row in [("file_name", "label"), *rows]]
    table = tmp_path / f"list.{ending}"
    table.write_text("\n".join(lines) + "\n")
    data = read_images(str(table))
    assert list(data.ids) == ["p/0.png", "p/1.png", "p/2.png", "p/0.png (y)"]
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert any("1 row" in note for note in data.notes)
    with (table).open("a") as file:
        file.write(lines[-1].replace("p/0", "p/9") + "\n")
    with pytest.raises(UserError, match=r"1 of 5 images cannot be read: p/9.png \(cannot be read: No such file"):
        read_images(str(table))


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    for number in range(3):
        color = Image.new("RGB", (200 + number, 100), (number * 100, 0, 0))
        (tmp_path / f"{number}.png").write_bytes(saved(color))
    data = read_images(str(tmp_path))
    assert (data.classes, data.labels.tolist()) == ([], [-1, -1, -1])
    assert data.pixels.shape == (3, 3, 64, 64)
    assert "200 × 100 to 202 × 100 pixels are resized to 64 × 64" in data.notes[0]


def test_color_without_color_is_gray_and_animations_are_noted(tmp_path: Path) -> None:
    frames = [Image.fromarray(grays() + n).convert("RGB") for n in range(3)]
    frames[0].save(tmp_path / "moving.png", save_all=True, append_images=frames[1:])
    data = read_images(str(tmp_path))
    np.testing.assert_array_equal(data.pixels, grays()[None, None])
    assert "gray" in data.notes[0]
    assert "moving.png" in data.notes[1]


def test_parts_are_no_classes(tmp_path: Path) -> None:
    folder_of(tmp_path / "d", train=1, val=1)
    with pytest.raises(UserError, match="--val-data"):
        read_images(str(tmp_path / "d"))


@pytest.mark.parametrize(("name", "words"), [("none", "there is no file"), ("a.txt", "a folder, or from a table")])
def test_what_holds_no_images_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(UserError, match=words):
        read_images(str(tmp_path / name))
    with pytest.raises(UserError, match="contains no images"):
        read_images(str(tmp_path))


def test_files_are_decoded_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_decoding, "_MIN_CACHED_FILES", 1)
    root = folder_of(tmp_path / "d", a=2, b=1)
    first = read_images(str(root))
    monkeypatch.setattr(image_decoding, "_decode", None)
    again = read_images(str(root))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert (first.image_format, first.notes, list(first.ids)) == (again.image_format, again.notes, list(again.ids))
    monkeypatch.undo()
    monkeypatch.setenv("TOKENLOOM_CACHE", str(cache))
    monkeypatch.setattr(image_decoding, "_MIN_CACHED_FILES", 1)
    (root / "a" / "0.png").write_bytes(saved(Image.fromarray(grays()[::-1])))
    os.utime(root / "a" / "0.png", (1, 1))
    np.testing.assert_array_equal(read_images(str(root)).pixels[0, 0], grays()[::-1])


def test_idx_by_hand() -> None:
    np.testing.assert_array_equal(idx(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 1, 7, 9])), [[7], [9]])


def test_digits_are_built_in() -> None:
    data = read_images("digits")
    assert data.pixels.shape == (1797, 1, 8, 8)
    assert data.pixels.max() == 255
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    larger = read_images("digits", ImageFormat((16, 16), "rgb"))
    assert larger.pixels.shape == (1797, 3, 16, 16)
    np.testing.assert_array_equal(convert(data.pixels, larger.image_format)[:9], larger.pixels[:9])


def test_a_table_of_paths_is_known_by_its_beginning(tmp_path: Path) -> None:
    """Its columns are called so, and images stand in it."""
    for name, text, known in (
        ("a.csv", "path,label\nx/1.png,cat\n", True),
        ("b.tsv", "\ufeffImage\tClass\nx 1.JPG\tcat\n", True),
        ("c.jsonl", '{"file_name": "1.webp", "label": "cat"}\n', True),
        ("d.csv", "path,label\nx/1.wav,cat\n", False),
        ("e.csv", "path,size\nx/1.png,7\n", False),
        ("f.csv", "", False),
    ):
        (tmp_path / name).write_text(text, "utf-8")
        assert (looks_like_images(str(tmp_path / name)) is not None) is known, name


def test_more_images_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 100}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    with pytest.raises(UserError, match=r"1,797 images of 64 × 32 pixels need 0.0 GB .* a smaller --image-size"):
        read_images("digits", ImageFormat((32, 64)))
    # 3 · 1,797 · 64 bytes are 84 pages and a bit.
    assert len(read_images("digits")) == 1797


def test_a_background_is_looked_at_for_a_built_in_set_too() -> None:
    with pytest.raises(UserError, match="no such color"):
        read_images("digits", ImageFormat(background_color="whitish"))


def test_sizes_are_told_from_the_smallest_area_to_the_largest() -> None:
    notes: list[str] = []
    headers = [image_decoding.Header(size, "gray", False) for size in ((3, 90), (1, 300), (20, 20))]
    image_decoding.settle(headers, ImageFormat(), notes)
    assert "images of 90 × 3 to 20 × 20 pixels" in notes[0]
