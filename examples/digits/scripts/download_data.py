"""Writes the data set: digits of 5 x 3 points in images of 8 x 8, shifted and noisy."""

from pathlib import Path

import numpy as np

POINTS = (
    *("111101101101111", "010110010010111", "111001111100111", "111001111001111"),
    *("101101111001001", "111100111001111", "111100111101111", "111001001001001"),
    *("111101111101111", "111101111001111"),
)


def draw(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = random.integers(0, 10, count)
    images = random.normal(0, 0.2, (count, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        down, right = random.integers(0, 4), random.integers(0, 6)
        digit = np.array([int(point) for point in POINTS[label]], dtype=np.float32)
        image[down : down + 5, right : right + 3] += digit.reshape(5, 3)
    return images, labels


def main() -> None:
    folder = Path(__file__).parents[1] / "data"
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for name, count in (("train", 4000), ("test", 500)):
        images, labels = draw(count, random)
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
        print(f"{count} images in {folder / name}.npz")


if __name__ == "__main__":
    main()
